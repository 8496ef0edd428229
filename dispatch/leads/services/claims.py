"""Claim ready leads, a batch per transaction: turn each into a call, defer it, or end it."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from itertools import chain
from typing import NamedTuple

import structlog
from django.conf import settings
from django.db import transaction

from dispatch.capacity import bulk as capacity
from dispatch.capacity import line_leases
from dispatch.capacity.bulk import PoolLimits
from dispatch.capacity.models import ProviderAccount
from dispatch.core import clock, events, fault_injection
from dispatch.core.db.prepared import pipeline, prefer_index_plans
from dispatch.core.events import EventRow
from dispatch.core.redis.client import REDIS_ERRORS
from dispatch.leads import counters, eligibility, redis_queue, sql
from dispatch.leads.redis_queue import PURPOSE, ClaimOutcome, Reservation
from dispatch.leads.rules import eligibility as eligibility_rules
from dispatch.leads.rules.eligibility import BatchContext
from dispatch.leads.rules.retries import CampaignRules, Defer, End, Go, LeadFacts, Verdict
from dispatch.leads.rules.states import WOULD_CALL, Mode, Reason, Status
from dispatch.leads.services import claim_failures
from dispatch.telephony.services import bulk as telephony
from dispatch.telephony.services.bulk import NewCall

log = structlog.get_logger(__name__)

# Delay for a lead that is locked by another session, or whose phone has an open call.
LOCKED_S = 1.0
STOPPED_S = 0.5
PHONE_BUSY = timedelta(seconds=10)
ACCOUNTS_S = 1.0


class CallToRequest(NamedTuple):
    """A committed call to request from the provider: not before `turn_at`, and never after `send_by`.

    Its lead was due at `due_at`.
    """

    call_id: int
    call: NewCall
    turn_at: datetime
    send_by: datetime
    due_at: datetime


class PrecheckRequest(NamedTuple):
    """An eligible lead whose campaign has a pre-check. It is still in the backlog, and keeps its line."""

    pair: Reservation
    lead: LeadFacts
    campaign: CampaignRules


@dataclass
class ClaimResult:
    """The result of one batch.

    `taken`: how many leads left the ready queue. `wait_s`: seconds until a retry makes sense (0: immediately), and
    `why`. `accounts`: the accounts of the calls, by id.
    """

    taken: int = 0
    calls: list[CallToRequest] = field(default_factory=list)
    accounts: dict[int, ProviderAccount] = field(default_factory=dict)
    questions: list[PrecheckRequest] = field(default_factory=list)
    why: str = ""
    wait_s: float = 0.0

    def add(self, part: ClaimResult) -> None:
        """Add the result of a part of the batch."""
        self.calls += part.calls
        self.questions += part.questions
        self.why, self.wait_s = part.why or self.why, max(part.wait_s, self.wait_s)


def no_claims(claimed: ClaimResult) -> None:
    """Ignore the claims, for callers that only need the return value."""


def claim_leads(
    worker: str, pool_id: int, most: int, committed: Callable[[ClaimResult], None] = no_claims
) -> ClaimResult:
    """Reserve up to `most` ready leads of a pool with their lines, and claim those that are eligible.

    `committed` is called with the result as soon as it is committed, before Redis is updated.

    Call it outside any transaction. Raises redis_queue.NotReady, any of REDIS_ERRORS, and DatabaseError; the
    reserved leads are then requeued, or ready again when their lease ends. A lead that makes the claim fail is
    deferred alone.
    """
    limits = capacity.load_pool_limits(pool_id)
    if limits is None:
        return ClaimResult(why="pool_paused", wait_s=STOPPED_S)
    _owed.pay(worker)
    with counters.processing.time():
        pairs, why, wait_s = _take(worker, most, limits)
        fault_injection.crash_point("leads.claim.taken")
        if why not in ("", "empty"):
            counters.line_waits.labels(why).inc()
        if not pairs:
            return ClaimResult(why=why, wait_s=wait_s)
        claimed = claim_reservations(worker, limits, pairs, committed=committed)
        claimed.why, claimed.wait_s = claimed.why or why, claimed.wait_s or wait_s
        return claimed


def _take(worker: str, most: int, limits: PoolLimits) -> tuple[list[Reservation], str, float]:
    """Reserve as `redis_queue.reserve` does.

    A batch whose reply was lost is requested again by the next claim of its pool, so that its leads need not wait
    for the end of its lease.
    """
    batch = _unanswered.pop((worker, limits.pool_id), None) or redis_queue.new_batch(worker)
    try:
        return redis_queue.reserve(batch, most, limits)
    except REDIS_ERRORS:
        _unanswered[worker, limits.pool_id] = batch
        raise


_unanswered: dict[tuple[str, int], str] = {}


def claim_reservations(
    worker: str,
    limits: PoolLimits,
    pairs: Sequence[Reservation],
    answers: Mapping[int, Verdict] | None = None,
    committed: Callable[[ClaimResult], None] = no_claims,
) -> ClaimResult:
    """Check the eligibility of reservations, and claim the eligible leads.

    `answers`: the results of pre-checks that were made before, by lead.
    """
    claimed = ClaimResult(taken=len(pairs))
    try:
        # before anything is committed, because a call could not be requested if its account cannot be read
        claimed.accounts = _accounts.of({number.account_id for number in limits.numbers.values()})
    except Exception:
        requeue_reservations(worker, pairs)
        raise
    waiting = [list(pairs)]
    while waiting:
        some = waiting.pop()
        batch = _Batch(worker, limits, some, answers or {})
        batch.claimed.accounts = claimed.accounts
        try:
            with transaction.atomic():
                with pipeline():
                    batch.work()
                fault_injection.crash_point("leads.claim.before_commit")
        except Exception as error:
            if claim_failures.is_outage(error):
                requeue_reservations(worker, [*some, *chain.from_iterable(waiting)])
                if claimed.calls or claimed.questions:  # they are committed, so they must be requested
                    log.warning("leads_claimed_in_part", error=str(error).strip())
                    return claimed
                raise
            if len(some) == 1:
                _owed.tell(worker, [claim_failures.defer(some[0], error)])
            else:  # so that only the lead that is the cause fails
                log.warning("leads_claim_split", leads=len(some), error=str(error).strip())
                half = len(some) // 2
                waiting += [some[half:], some[:half]]
            continue
        fault_injection.crash_point("leads.claim.committed")
        committed(batch.claimed)
        _owed.tell(worker, batch.fates.values())
        fault_injection.crash_point("leads.claim.settled")
        claimed.add(batch.claimed)
    return claimed


def claim_answered(worker: str, answered: Sequence[tuple[PrecheckRequest, Verdict]]) -> ClaimResult:
    """Claim leads of one pool whose pre-checks were answered.

    Their eligibility is checked again, because time has passed.
    """
    pairs = [question.pair for question, _ in answered]
    try:
        limits = capacity.load_pool_limits(answered[0][0].campaign.pool_id)
        is_allowed = limits is not None and all(limits.allows(PURPOSE, *pair[4:7]) for pair in pairs)
    except Exception:
        requeue_reservations(worker, pairs)
        raise
    if limits is None or not is_allowed:
        requeue_reservations(worker, pairs)
        return ClaimResult(why="pool_paused")
    return claim_reservations(worker, limits, pairs, {question.lead.id: verdict for question, verdict in answered})


def requeue_reservations(worker: str, pairs: Iterable[Reservation]) -> None:
    """Requeue reservations and release their lines."""
    _owed.tell(
        worker, [ClaimOutcome(pair.batch, pair.member, "again", pair.due_ms, pair.member) for pair in pairs]
    )


class _PendingRedisUpdates:
    """Updates that Redis missed while it was unavailable. Each dialer sends them before it reserves more leads.

    An update after the end of its batch's lease changes nothing.
    """

    def __init__(self) -> None:
        self._fates: dict[str, list[ClaimOutcome]] = {}
        self._lock = threading.Lock()

    def tell(self, worker: str, fates: Iterable[ClaimOutcome]) -> None:
        with self._lock:
            owed = [*self._fates.pop(worker, ()), *fates]
        try:
            redis_queue.complete_reservations(owed)
        except redis_queue.UNAVAILABLE as error:
            log.warning("redis_batch_update_deferred", leads=len(owed), error=str(error))
            with self._lock:
                self._fates.setdefault(worker, []).extend(owed)

    def pay(self, worker: str) -> None:
        if self._fates.get(worker):
            self.tell(worker, ())

    def forget(self) -> None:
        with self._lock:
            self._fates.clear()


_owed = _PendingRedisUpdates()


class _AccountCache:
    """A cache of accounts with their credentials, refreshed every second."""

    def __init__(self) -> None:
        self._read: dict[int, tuple[float, ProviderAccount]] = {}

    def of(self, ids: set[int]) -> dict[int, ProviderAccount]:
        now = time.monotonic()
        stale = [pk for pk in ids if pk not in self._read or now - self._read[pk][0] > ACCOUNTS_S]
        if stale:
            self._read |= {pk: (now, row) for pk, row in ProviderAccount.objects.in_bulk(stale).items()}
        return {pk: self._read[pk][1] for pk in ids}

    def forget(self) -> None:
        self._read.clear()


_accounts = _AccountCache()


def reset() -> None:
    """Reset pending updates and cached accounts (tests)."""
    _owed.forget()
    _accounts.forget()
    _unanswered.clear()


class _Batch:
    """A batch during its claim. `fates` contains the outcome of each reservation.

    Leads are reserved shortly before they are due (`settings.LEADS_AHEAD_S`). Their eligibility is checked as of
    the moment at which the last of them is due, and each call is requested at its lead's own due time.
    """

    def __init__(
        self, worker: str, limits: PoolLimits, pairs: Sequence[Reservation], answers: Mapping[int, Verdict]
    ) -> None:
        self.worker, self.limits, self.answers = worker, limits, answers
        self.pairs = {pair.lead_id: pair for pair in pairs}
        self.now = self.as_of = clock.now()
        self.claimed = ClaimResult(taken=len(pairs))
        self.fates: dict[str, ClaimOutcome] = {}
        self.events: list[EventRow] = []

    # --- The transaction

    def work(self) -> None:
        prefer_index_plans()
        leads = self._lock()
        if not leads:
            return
        self.as_of = max(self.now, *(lead.due_at for lead in leads))
        context = eligibility.load_batch(leads, self.as_of)
        if context.stopped:
            self.claimed.why, self.claimed.wait_s = "stopped", STOPPED_S
            for lead in leads:
                self._again(self.pairs[lead.id])
            return
        go, later, over, simulated = self._decide(leads, context)
        self._call(go, context, later)
        self._defer(later)
        self._finish(over)
        self._simulate(simulated)
        events.append_many(self.events)

    def _lock(self) -> list[LeadFacts]:
        """Lock the rows, and return the leads that may be called now."""
        found = sql.fetch_all(sql.LOCK, {"ids": sql.integers(self.pairs)})
        horizon = self.now + timedelta(seconds=settings.LEADS_AHEAD_S)
        leads, is_called = [], False
        for row in found:
            lead, status = sql.facts_of(row), row[-1]
            pair = self.pairs[lead.id]
            if status == Status.PROCESSING and lead.token == pair.attempt:
                self._fate(
                    pair, "called"
                )  # by a dialer that died before it reported that: the line belongs to the call
                is_called = True
            elif status != Status.BACKLOG or lead.token + 1 != pair.attempt:
                self._fate(pair, "gone")
            elif lead.due_at > horizon:
                self._later(pair, lead.due_at)
            else:
                leads.append(lead)
        if len(found) < len(self.pairs):
            self._missing({row[0] for row in found})
        if is_called:  # the reservation may have given it another line
            transaction.on_commit(partial(line_leases.repair_pool, self.limits.pool_id), robust=True)
        return leads

    def _missing(self, found: set[int]) -> None:
        """Handle leads that are locked by another session, or deleted."""
        missing = [lead_id for lead_id in self.pairs if lead_id not in found]
        there = {row[0] for row in sql.fetch_all(sql.EXISTING, {"ids": sql.integers(missing)})}
        for lead_id in missing:
            if lead_id in there:
                self._later(self.pairs[lead_id], self.now + timedelta(seconds=LOCKED_S))
            else:
                self._fate(self.pairs[lead_id], "gone")

    def _decide(
        self, leads: Sequence[LeadFacts], context: BatchContext
    ) -> tuple[
        list[LeadFacts], list[tuple[LeadFacts, Defer]], list[tuple[LeadFacts, End]], list[tuple[LeadFacts, str]]
    ]:
        go, later, over, simulated = [], [], [], []
        for lead in leads:
            campaign = context.campaigns[lead.campaign_id]
            if campaign.pool_id != self.limits.pool_id:
                self._again(self.pairs[lead.id], campaign.pool_id)
                continue
            verdict = eligibility_rules.check_eligibility(lead, campaign, context)
            if isinstance(verdict, Go) and campaign.precheck_url:
                if lead.id not in self.answers:
                    self.claimed.questions.append(PrecheckRequest(self.pairs[lead.id], lead, campaign))
                    self._fate(self.pairs[lead.id], "asked")
                    continue
                verdict = self.answers[lead.id]
            if isinstance(verdict, Defer):
                later.append((lead, verdict))
            elif campaign.mode == Mode.DRY_RUN:
                simulated.append((lead, verdict.outcome if isinstance(verdict, End) else WOULD_CALL))
            elif isinstance(verdict, End):
                over.append((lead, verdict))
            else:
                go.append(lead)
        return go, later, over, simulated

    def _call(self, leads: list[LeadFacts], context: BatchContext, later: list[tuple[LeadFacts, Defer]]) -> None:
        """Write the calls of leads whose account and pool may request them now."""
        turns = self._turns(leads)
        calls = {lead.id: self._new_call(lead, context, turns[lead.id]) for lead in leads if lead.id in turns}
        wanted = list(calls.values())
        if not wanted:
            return
        ids = telephony.create_calls(PURPOSE, wanted, now=self.now)
        called = [lead for lead in leads if lead.id in ids]
        refused = [lead for lead in leads if lead.id in turns and lead.id not in ids]
        later += [(lead, Defer(self.now + PHONE_BUSY, Reason.PHONE_BUSY)) for lead in refused]
        if refused and not telephony.busy_phones({(lead.organization_id, lead.phone) for lead in refused}):
            transaction.on_commit(partial(line_leases.repair_pool, self.limits.pool_id), robust=True)
        if not called:
            return
        sql.execute(
            sql.CLAIM,
            {
                "ids": sql.integers(lead.id for lead in called),
                "tokens": sql.integers(lead.token + 1 for lead in called),
                "worker": self.worker,
                "now": self.now,
            },
        )
        for lead in called:
            pair, call = self.pairs[lead.id], calls[lead.id]
            turn_at = max(self.now + timedelta(seconds=turns[lead.id]), lead.due_at)
            send_by = self.now + timedelta(milliseconds=call.send_ms)
            self.claimed.calls.append(CallToRequest(ids[lead.id], call, turn_at, send_by, lead.due_at))
            self._fate(pair, "called")
            data = (
                f'{{"call": {ids[lead.id]}, "call_status": "requesting", "attempt": {call.attempt},'
                f' "campaign_id": {lead.campaign_id}, "number": {call.number_id}}}'
            )
            self.events.append(EventRow(lead.organization_id, "lead.processing", lead.id, data))

    def _turns(self, leads: Sequence[LeadFacts]) -> dict[int, float]:
        """Return the seconds until the call of each lead that may be requested about now.

        This depends on the due times, and on the rates of the pool and of the accounts of their lines. The other
        leads are ready again immediately.
        """
        by_account: dict[int, list[LeadFacts]] = {}
        for lead in leads:
            number = self.limits.numbers[self.pairs[lead.id].number_id]
            by_account.setdefault(number.account_id, []).append(lead)
        turns: dict[int, float] = {}
        for account_id, some in by_account.items():
            not_before_s: list[float] = []
            if self.as_of > self.now:
                some.sort(key=lambda lead: lead.due_at)
                not_before_s = [(lead.due_at - self.now).total_seconds() for lead in some]
            per_second = self.limits.numbers[self.pairs[some[0].id].number_id].calls_per_second
            waits = capacity.take_rate_tokens(
                account_id, per_second, self.limits.pool_id, self.limits.rate_per_minute, len(some), not_before_s
            )
            turns |= {lead.id: wait_s for lead, wait_s in zip(some, waits, strict=False)}
            for lead in some[len(waits) :]:
                self._again(self.pairs[lead.id])
                counters.line_waits.labels("rate").inc()
        return turns

    def _new_call(self, lead: LeadFacts, context: BatchContext, turn_s: float) -> NewCall:
        campaign = context.campaigns[lead.campaign_id]
        latest = self.now + timedelta(seconds=settings.CALL_SEND_WINDOW_S)
        send_by = eligibility_rules.permitted_until(lead, campaign, context, latest)
        pair = self.pairs[lead.id]
        number = self.limits.numbers[pair.number_id]
        return NewCall(
            lead.organization_id,
            lead.id,
            pair.attempt,
            lead.phone,
            number.account_id,
            pair.number_id,
            number.phone,
            pair.line_slot,
            self.limits.pool_id,
            pair.pool_slot,
            campaign.ring_timeout_s,
            campaign.time_limit_s,
            campaign.detect_machines,
            campaign.dial,
            math.ceil(turn_s * 1000),
            math.floor((send_by - self.now).total_seconds() * 1000),
        )

    def _defer(self, later: Sequence[tuple[LeadFacts, Defer]]) -> None:
        if not later:
            return
        sql.execute(
            sql.DEFER,
            {
                "ids": sql.integers(lead.id for lead, _ in later),
                "dues": [verdict.until for _, verdict in later],
                "reasons": sql.texts(verdict.reason for _, verdict in later),
            },
        )
        for lead, verdict in later:
            self._later(self.pairs[lead.id], verdict.until)
            counters.picked.labels(verdict.reason).inc()

    def _finish(self, over: Sequence[tuple[LeadFacts, End]]) -> None:
        if not over:
            return
        sql.execute(
            sql.FINISH,
            {
                "ids": sql.integers(lead.id for lead, _ in over),
                "outcomes": sql.texts(verdict.outcome for _, verdict in over),
                "reasons": sql.texts(verdict.reason for _, verdict in over),
                "lasts": sql.texts("" for _ in over),
                "uncounted": sql.integers(0 for _ in over),
                "now": self.now,
            },
        )
        for lead, verdict in over:
            data = {"outcome": verdict.outcome, "reason": verdict.reason, "campaign_id": lead.campaign_id}
            self.events.append(EventRow(lead.organization_id, "lead.finished", lead.id, data))
            self._fate(self.pairs[lead.id], "gone")
            counters.picked.labels(verdict.outcome).inc()

    def _simulate(self, simulated: Sequence[tuple[LeadFacts, str]]) -> None:
        """Record the results of a dry run. The leads wait for its end, and then continue as before."""
        if not simulated:
            return
        until = self.now + eligibility_rules.FAR
        sql.execute(
            sql.SIMULATE,
            {
                "ids": sql.integers(lead.id for lead, _ in simulated),
                "outcomes": sql.texts(outcome for _, outcome in simulated),
                "until": until,
                "now": self.now,
            },
        )
        for lead, outcome in simulated:
            pair = self.pairs[lead.id]
            data = {"outcome": outcome, "campaign_id": lead.campaign_id, "number": pair.number_id}
            self.events.append(EventRow(lead.organization_id, "lead.simulated", lead.id, data))
            self._later(pair, until)
            counters.picked.labels(Reason.DRY_RUN).inc()

    # --- Outcomes of the reservations in Redis

    def _fate(self, pair: Reservation, what: str) -> None:
        self.fates[pair.member] = ClaimOutcome(pair.batch, pair.member, what)

    def _again(self, pair: Reservation, pool_id: int | None = None) -> None:
        goes_on_as = pair.member
        if pool_id is not None:
            goes_on_as = f"{pool_id}:{pair.lead_id}:{pair.attempt}"
        self.fates[pair.member] = ClaimOutcome(pair.batch, pair.member, "again", pair.due_ms, goes_on_as)

    def _later(self, pair: Reservation, until: datetime) -> None:
        self.fates[pair.member] = ClaimOutcome(
            pair.batch, pair.member, "later", redis_queue.to_ms(until), pair.member
        )
