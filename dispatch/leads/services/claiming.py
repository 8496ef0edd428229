"""Ready leads become calls, or wait, or end: a batch at a time, in one transaction."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import NamedTuple

import structlog
from django.conf import settings
from django.db import transaction

from dispatch.capacity import batches as capacity
from dispatch.capacity import lines
from dispatch.capacity.batches import PoolLimits
from dispatch.capacity.models import ProviderAccount
from dispatch.core import clock, events, faults
from dispatch.core.events import EventLine
from dispatch.core.statements import by_index, pipelined
from dispatch.leads import gating, measures, schedule, sql
from dispatch.leads.rules import gates
from dispatch.leads.rules.facts import CampaignRules, Defer, End, Go, LeadFacts, Verdict
from dispatch.leads.rules.gates import Batch
from dispatch.leads.rules.words import Mode, Outcome, Reason, Status
from dispatch.leads.schedule import PURPOSE, Fate, Pair
from dispatch.telephony.services import batches as telephony
from dispatch.telephony.services.batches import NewCall

log = structlog.get_logger(__name__)

# What is locked by somebody else at this moment, or met an open call to its phone, is tried again after so long.
LOCKED_S = 1.0
STOPPED_S = 0.5
PHONE_BUSY = timedelta(seconds=10)
ACCOUNTS_S = 1.0


class ToAsk(NamedTuple):
    """A committed call that the provider is to be asked for, not before `turn_at`, and never after `send_by`; its
    lead was due at `due_at`."""

    call_id: int
    call: NewCall
    turn_at: datetime
    send_by: datetime
    due_at: datetime


class Question(NamedTuple):
    """A lead that passed the gates, and whose campaign wants to be asked first. It is still in the backlog; its
    line is held."""

    pair: Pair
    lead: LeadFacts
    campaign: CampaignRules


@dataclass
class Claimed:
    """What one batch came to. `taken`: how many leads left the room; `wait_s`: after how long it is worth asking
    again (0: at once), and `why`; `accounts`: of the calls, by id."""

    taken: int = 0
    calls: list[ToAsk] = field(default_factory=list)
    accounts: dict[int, ProviderAccount] = field(default_factory=dict)
    questions: list[Question] = field(default_factory=list)
    why: str = ""
    wait_s: float = 0.0


def nothing(claimed: Claimed) -> None:
    """For who looks at what was claimed only when all is told."""


def claim(worker: str, pool_id: int, most: int, committed: Callable[[Claimed], None] = nothing) -> Claimed:
    """Takes up to `most` ready leads of a pool with their lines, and sees them through the gates. `committed` is
    called with what they came to as soon as that is on disk, before Redis is told.

    Outside of any transaction. Raises schedule.NotReady, REDIS_ERRORS, DatabaseError; what was taken then is put
    back, or found by the reconcilers."""
    limits = capacity.limits_of(pool_id)
    if limits is None:
        return Claimed(why="pool_paused", wait_s=STOPPED_S)
    _owed.pay(worker)
    with measures.processing.time():
        pairs, why, wait_s = schedule.pair(worker, most, limits)
        faults.point("leads.claim.taken")
        if why not in ("", "empty"):
            measures.line_waits.labels(why).inc()
        if not pairs:
            return Claimed(why=why, wait_s=wait_s)
        claimed = claim_pairs(worker, limits, pairs, committed=committed)
        claimed.why, claimed.wait_s = claimed.why or why, claimed.wait_s or wait_s
        return claimed


def claim_pairs(
    worker: str,
    limits: PoolLimits,
    pairs: Sequence[Pair],
    answers: Mapping[int, Verdict] | None = None,
    committed: Callable[[Claimed], None] = nothing,
) -> Claimed:
    """Sees pairs through the gates. `answers`: what came of the questions that were asked first, by lead."""
    batch = _Batch(worker, limits, pairs, answers or {})
    try:
        # before anything is committed: a call whose account cannot be read could not be asked for
        batch.claimed.accounts = _accounts.of({number.account_id for number in limits.numbers.values()})
        with transaction.atomic():
            with pipelined():
                batch.work()
            faults.point("leads.claim.before_commit")
    except Exception:
        put_back(worker, pairs)
        raise
    faults.point("leads.claim.committed")
    committed(batch.claimed)
    _owed.tell(worker, batch.fates.values())
    faults.point("leads.claim.settled")
    return batch.claimed


def claim_answered(worker: str, answered: Sequence[tuple[Question, Verdict]]) -> Claimed:
    """Takes up leads of one pool whose questions were answered: through the gates again, for time has passed."""
    pairs = [question.pair for question, _ in answered]
    limits = capacity.limits_of(answered[0][0].campaign.pool_id)
    if limits is None or any(not limits.allows(PURPOSE, *pair[4:]) for pair in pairs):
        put_back(worker, pairs)
        return Claimed(why="pool_paused")
    return claim_pairs(worker, limits, pairs, {question.lead.id: verdict for question, verdict in answered})


def put_back(worker: str, pairs: Iterable[Pair]) -> None:
    """Makes pairs ready again and gives their lines back."""
    _owed.tell(worker, [Fate(pair.member, "again", pair.due_ms, pair.member) for pair in pairs])


class _Owed:
    """What Redis could not be told while it was away; each dialer tells it before it takes anything more. A dialer
    that dies first is buried, and what it held is ready again."""

    def __init__(self) -> None:
        self._fates: dict[str, list[Fate]] = {}
        self._lock = threading.Lock()

    def tell(self, worker: str, fates: Iterable[Fate]) -> None:
        with self._lock:
            owed = [*self._fates.pop(worker, ()), *fates]
        try:
            schedule.settle(worker, owed)
        except schedule.UNAVAILABLE as error:
            log.warning("Redis could not be told of a batch, it will be", leads=len(owed), error=str(error))
            with self._lock:
                self._fates.setdefault(worker, []).extend(owed)

    def pay(self, worker: str) -> None:
        if self._fates.get(worker):
            self.tell(worker, ())

    def forget(self) -> None:
        with self._lock:
            self._fates.clear()


_owed = _Owed()


class _Accounts:
    """Accounts with their credentials, read anew every second."""

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


_accounts = _Accounts()


def forget() -> None:
    """Owes Redis nothing, and reads accounts anew (tests)."""
    _owed.forget()
    _accounts.forget()


class _Batch:
    """One batch on its way through the gates; `fates` says of each pair what became of it.

    Leads come a moment before they are due (`settings.LEADS_AHEAD_S`): they are judged as of the moment at which
    the last of them is due, and the provider is asked for each at its own."""

    def __init__(
        self, worker: str, limits: PoolLimits, pairs: Sequence[Pair], answers: Mapping[int, Verdict]
    ) -> None:
        self.worker, self.limits, self.answers = worker, limits, answers
        self.pairs = {pair.lead_id: pair for pair in pairs}
        self.now = self.as_of = clock.now()
        self.claimed = Claimed(taken=len(pairs))
        self.fates: dict[str, Fate] = {}
        self.events: list[EventLine] = []

    # --- The transaction

    def work(self) -> None:
        by_index()
        leads = self._lock()
        if not leads:
            return
        self.as_of = max(self.now, *(lead.due_at for lead in leads))
        context = gating.read(leads, self.as_of)
        if context.stopped:
            self.claimed.why, self.claimed.wait_s = "stopped", STOPPED_S
            for lead in leads:
                self._again(self.pairs[lead.id])
            return
        go, later, over = self._decide(leads, context)
        self._call(go, context, later)
        self._defer(later)
        self._finish(over)
        events.append_many(self.events)

    def _lock(self) -> list[LeadFacts]:
        """Locks the rows; those that may be called now."""
        found = sql.rows(sql.LOCK, {"ids": sql.integers(self.pairs)})
        horizon = self.now + timedelta(seconds=settings.LEADS_AHEAD_S)
        leads = []
        for row in found:
            lead, status = sql.facts_of(row), row[-1]
            pair = self.pairs[lead.id]
            if status == Status.PROCESSING and lead.token == pair.attempt:
                self._fate(pair, "called")  # by a dialer that died before it could say so: the line is its call's
            elif status != Status.BACKLOG or lead.token + 1 != pair.attempt:
                self._fate(pair, "gone")
            elif lead.due_at > horizon:
                self._later(pair, lead.due_at)
            else:
                leads.append(lead)
        if len(found) < len(self.pairs):
            self._missing({row[0] for row in found})
        return leads

    def _missing(self, found: set[int]) -> None:
        """Locked by somebody else, or deleted."""
        missing = [lead_id for lead_id in self.pairs if lead_id not in found]
        there = {row[0] for row in sql.rows(sql.EXISTING, {"ids": sql.integers(missing)})}
        for lead_id in missing:
            if lead_id in there:
                self._later(self.pairs[lead_id], self.now + timedelta(seconds=LOCKED_S))
            else:
                self._fate(self.pairs[lead_id], "gone")

    def _decide(
        self, leads: Sequence[LeadFacts], context: Batch
    ) -> tuple[list[LeadFacts], list[tuple[LeadFacts, Defer]], list[tuple[LeadFacts, End]]]:
        go, later, over = [], [], []
        for lead in leads:
            campaign = context.campaigns[lead.campaign_id]
            if campaign.pool_id != self.limits.pool_id:
                self._again(self.pairs[lead.id], campaign.pool_id)
                continue
            verdict = gates.decide(lead, campaign, context)
            if isinstance(verdict, Go) and campaign.precheck_url:
                if lead.id not in self.answers:
                    self.claimed.questions.append(Question(self.pairs[lead.id], lead, campaign))
                    continue
                verdict = self.answers[lead.id]
            if isinstance(verdict, Defer):
                later.append((lead, verdict))
            elif isinstance(verdict, End):
                over.append((lead, verdict))
            elif campaign.mode == Mode.DRY_RUN:
                over.append((lead, End(Outcome.DRY_RUN, Reason.DRY_RUN)))
            else:
                go.append(lead)
        return go, later, over

    def _call(self, leads: list[LeadFacts], context: Batch, later: list[tuple[LeadFacts, Defer]]) -> None:
        """Writes the calls of those whose account and pool may ask the provider now."""
        turns = self._turns(leads)
        calls = {
            lead.id: self._new_call(lead, context.campaigns[lead.campaign_id], turns[lead.id])
            for lead in leads
            if lead.id in turns
        }
        wanted = list(calls.values())
        if not wanted:
            return
        send_by = self.now + timedelta(seconds=settings.CALL_SEND_WINDOW_S)
        ids = telephony.create_many(PURPOSE, wanted, now=self.now, send_by=send_by)
        called = [lead for lead in leads if lead.id in ids]
        refused = [lead for lead in leads if lead.id in turns and lead.id not in ids]
        later += [(lead, Defer(self.now + PHONE_BUSY, Reason.PHONE_BUSY)) for lead in refused]
        if refused and not telephony.busy_phones({(lead.organization_id, lead.phone) for lead in refused}):
            transaction.on_commit(partial(lines.repair, self.limits.pool_id), robust=True)
        if not called:
            return
        sql.do(
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
            self.claimed.calls.append(ToAsk(ids[lead.id], call, turn_at, send_by, lead.due_at))
            self._fate(pair, "called")
            data = (
                f'{{"call": {ids[lead.id]}, "call_status": "requesting", "attempt": {call.attempt},'
                f' "campaign_id": {lead.campaign_id}, "number": {call.number_id}}}'
            )
            self.events.append(EventLine(lead.organization_id, "lead.processing", lead.id, data))

    def _turns(self, leads: Sequence[LeadFacts]) -> dict[int, float]:
        """Those whose turn it is about now, by when they are due and the rates of their lines' accounts and of the
        pool: lead → seconds until it is. The others are ready again at once."""
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
            waits = capacity.take(
                account_id, per_second, self.limits.pool_id, self.limits.rate_per_minute, len(some), not_before_s
            )
            turns |= {lead.id: wait_s for lead, wait_s in zip(some, waits, strict=False)}
            for lead in some[len(waits) :]:
                self._again(self.pairs[lead.id])
                measures.line_waits.labels("rate").inc()
        return turns

    def _new_call(self, lead: LeadFacts, campaign: CampaignRules, turn_s: float) -> NewCall:
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
        )

    def _defer(self, later: Sequence[tuple[LeadFacts, Defer]]) -> None:
        if not later:
            return
        sql.do(
            sql.DEFER,
            {
                "ids": sql.integers(lead.id for lead, _ in later),
                "dues": [verdict.until for _, verdict in later],
                "reasons": sql.texts(verdict.reason for _, verdict in later),
            },
        )
        for lead, verdict in later:
            self._later(self.pairs[lead.id], verdict.until)
            measures.picked.labels(verdict.reason).inc()

    def _finish(self, over: Sequence[tuple[LeadFacts, End]]) -> None:
        if not over:
            return
        sql.do(
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
            if verdict.outcome == Outcome.DRY_RUN:
                data["number"] = self.pairs[lead.id].number_id
            self.events.append(EventLine(lead.organization_id, "lead.finished", lead.id, data))
            self._fate(self.pairs[lead.id], "gone")
            measures.picked.labels(verdict.outcome).inc()

    # --- What becomes of the pairs in Redis

    def _fate(self, pair: Pair, what: str) -> None:
        self.fates[pair.member] = Fate(pair.member, what)

    def _again(self, pair: Pair, pool_id: int | None = None) -> None:
        goes_on_as = pair.member
        if pool_id is not None:
            goes_on_as = f"{pool_id}:{pair.lead_id}:{pair.attempt}"
        self.fates[pair.member] = Fate(pair.member, "again", pair.due_ms, goes_on_as)

    def _later(self, pair: Pair, until: datetime) -> None:
        self.fates[pair.member] = Fate(pair.member, "later", schedule.ms(until), pair.member)
