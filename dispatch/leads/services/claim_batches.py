"""Claim one batch of reserved leads in a transaction: call, defer or end each lead."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import NamedTuple

from django.conf import settings
from django.db import transaction

from dispatch.capacity import bulk as capacity
from dispatch.capacity import line_leases
from dispatch.capacity.bulk import PoolLimits
from dispatch.capacity.models import ProviderAccount
from dispatch.core import clock, events
from dispatch.core.db.prepared import prefer_index_plans
from dispatch.core.events import EventRow
from dispatch.leads import counters, eligibility, redis_queue, sql
from dispatch.leads.redis_queue import PURPOSE, ClaimOutcome, Reservation
from dispatch.leads.rules import eligibility as eligibility_rules
from dispatch.leads.rules.eligibility import BatchContext
from dispatch.leads.rules.retries import CampaignRules, Defer, End, Go, LeadFacts, Verdict, within_patience
from dispatch.leads.rules.states import WOULD_CALL, Mode, Outcome, Reason, Status
from dispatch.telephony import price_sql
from dispatch.telephony.services import bulk as telephony
from dispatch.telephony.services import spend_caps
from dispatch.telephony.services.bulk import NewCall

# Delay for a lead that is locked by another session, or whose phone has an open call.
LOCKED_S = 1.0
STOPPED_S = 0.5
PHONE_BUSY = timedelta(seconds=10)


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

    reservation: Reservation
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


class ClaimBatch:
    """A batch during its claim. `outcomes` contains the outcome of each reservation.

    Leads are reserved shortly before they are due (`settings.LEADS_AHEAD_S`). Their eligibility is checked as of
    the moment at which the last of them is due, and each call is requested at its lead's own due time.
    """

    def __init__(
        self, worker: str, limits: PoolLimits, reservations: Sequence[Reservation], answers: Mapping[int, Verdict]
    ) -> None:
        self.worker, self.limits, self.answers = worker, limits, answers
        self.reservations = {reservation.lead_id: reservation for reservation in reservations}
        self.now = self.as_of = clock.now()
        self.claimed = ClaimResult(taken=len(reservations))
        self.outcomes: dict[str, ClaimOutcome] = {}
        self.events: list[EventRow] = []

    # --- The transaction

    def claim(self) -> None:
        prefer_index_plans()
        leads = self._lock_leads()
        if not leads:
            return
        self.as_of = max(self.now, *(lead.due_at for lead in leads))
        context = eligibility.load_batch(leads, self.as_of)
        if context.stopped:
            self.claimed.why, self.claimed.wait_s = "stopped", STOPPED_S
            for lead in leads:
                self._requeue(self.reservations[lead.id])
            return
        go, later, over, simulated = self._decide(leads, context)
        self._create_calls(go, context, later)
        self._defer(later)
        self._finish(over)
        self._simulate(simulated)
        events.append_many(self.events)

    def _lock_leads(self) -> list[LeadFacts]:
        """Lock the rows, and return the leads that may be called now."""
        rows = sql.fetch_all(sql.LOCK, {"ids": sql.integers(self.reservations)})
        horizon = self.now + timedelta(seconds=settings.LEADS_AHEAD_S)
        leads, called = [], []
        for row in rows:
            lead, status = sql.facts_of(row), row[-1]
            reservation = self.reservations[lead.id]
            if status == Status.PROCESSING and lead.token == reservation.attempt:
                # by a dialer that died before it reported that: the line belongs to the call
                self._record_outcome(reservation, "called")
                called.append(lead)
            elif status != Status.BACKLOG or lead.token + 1 != reservation.attempt:
                self._record_outcome(reservation, "gone")
            elif lead.due_at > horizon:
                self._reschedule(reservation, lead.due_at, "early")
            else:
                leads.append(lead)
        if len(rows) < len(self.reservations):
            self._handle_missing({row[0] for row in rows})
        if called:  # the reservation may have given it another line, also of another pool
            pools = {self.limits.pool_id, *telephony.pools_of_open_calls(PURPOSE, [lead.id for lead in called])}
            for pool_id in sorted(pools):
                transaction.on_commit(partial(line_leases.repair_pool, pool_id), robust=True)
        return leads

    def _handle_missing(self, locked: set[int]) -> None:
        """Handle leads that are locked by another session, or deleted."""
        missing = [lead_id for lead_id in self.reservations if lead_id not in locked]
        existing = {row[0] for row in sql.fetch_all(sql.EXISTING, {"ids": sql.integers(missing)})}
        for lead_id in missing:
            if lead_id in existing:
                self._reschedule(self.reservations[lead_id], self.now + timedelta(seconds=LOCKED_S))
            else:
                self._record_outcome(self.reservations[lead_id], "gone")

    def _decide(
        self, leads: Sequence[LeadFacts], context: BatchContext
    ) -> tuple[
        list[LeadFacts], list[tuple[LeadFacts, Defer]], list[tuple[LeadFacts, End]], list[tuple[LeadFacts, str]]
    ]:
        go, later, over, simulated = [], [], [], []
        for lead in leads:
            campaign = context.campaigns[lead.campaign_id]
            if campaign.pool_id != self.limits.pool_id:
                self._requeue(self.reservations[lead.id], campaign.pool_id)
                continue
            verdict = eligibility_rules.check_eligibility(lead, campaign, context)
            if isinstance(verdict, Go) and campaign.precheck_url:
                if lead.id not in self.answers:
                    self.claimed.questions.append(PrecheckRequest(self.reservations[lead.id], lead, campaign))
                    self._record_outcome(self.reservations[lead.id], "asked")
                    continue
                # a campaign's system that always defers a lead must not keep it forever
                answer = self.answers[lead.id]
                verdict = within_patience(lead, campaign, answer, Outcome.PRECHECK_FAILED, self.as_of)
            if isinstance(verdict, Defer):
                later.append((lead, verdict))
            elif campaign.mode == Mode.DRY_RUN:
                simulated.append((lead, verdict.outcome if isinstance(verdict, End) else WOULD_CALL))
            elif isinstance(verdict, End):
                over.append((lead, verdict))
            else:
                go.append(lead)
        return go, later, over, simulated

    def _create_calls(
        self, leads: list[LeadFacts], context: BatchContext, later: list[tuple[LeadFacts, Defer]]
    ) -> None:
        """Write the calls of leads whose account and pool may request them now."""
        turns = self._within_spend_cap(self._turns(leads))
        calls = {lead.id: self._new_call(lead, context, turns[lead.id]) for lead in leads if lead.id in turns}
        wanted = list(calls.values())
        if not wanted:
            return
        ids = telephony.create_calls(PURPOSE, wanted, now=self.now)
        called = [lead for lead in leads if lead.id in ids]
        refused = [lead for lead in leads if lead.id in turns and lead.id not in ids]
        if refused:
            later += self._handle_refused(refused)
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
            reservation, call = self.reservations[lead.id], calls[lead.id]
            turn_at = max(self.now + timedelta(seconds=turns[lead.id]), lead.due_at)
            send_by = self.now + timedelta(milliseconds=call.send_ms)
            self.claimed.calls.append(CallToRequest(ids[lead.id], call, turn_at, send_by, lead.due_at))
            self._record_outcome(reservation, "called")
            data = (
                f'{{"call": {ids[lead.id]}, "call_status": "requesting", "attempt": {call.attempt},'
                f' "campaign_id": {lead.campaign_id}, "number": {call.number_id}}}'
            )
            self.events.append(EventRow(lead.organization_id, "lead.processing", lead.id, data))

    def _handle_refused(self, refused: Sequence[LeadFacts]) -> list[tuple[LeadFacts, Defer]]:
        """Handle leads whose call the database refused. Return those whose phone is busy, deferred.

        The others got a line that another call uses: they are ready again soon, and Redis is repaired.
        """
        busy = telephony.busy_phones({(lead.organization_id, lead.phone) for lead in refused})
        deferred, without_line = [], []
        for lead in refused:
            if (lead.organization_id, lead.phone) in busy:
                deferred.append((lead, Defer(self.now + PHONE_BUSY, Reason.PHONE_BUSY)))
            else:
                without_line.append(lead)
        for lead in without_line:
            self._reschedule(self.reservations[lead.id], self.now + timedelta(seconds=LOCKED_S))
        if without_line:
            transaction.on_commit(partial(line_leases.repair_pool, self.limits.pool_id), robust=True)
        return deferred

    def _turns(self, leads: Sequence[LeadFacts]) -> dict[int, float]:
        """Return the seconds until the call of each lead that may be requested about now.

        This depends on the due times, and on the rates of the pool and of the accounts of their lines. The other
        leads are ready again immediately.
        """
        by_account: dict[int, list[LeadFacts]] = {}
        for lead in leads:
            number = self.limits.numbers[self.reservations[lead.id].number_id]
            by_account.setdefault(number.account_id, []).append(lead)
        turns: dict[int, float] = {}
        for account_id, group in by_account.items():
            not_before_s: list[float] = []
            if self.as_of > self.now:
                group.sort(key=lambda lead: lead.due_at)
                not_before_s = [(lead.due_at - self.now).total_seconds() for lead in group]
            per_second = self.limits.numbers[self.reservations[group[0].id].number_id].calls_per_second
            waits = capacity.take_rate_tokens(
                account_id, per_second, self.limits.pool_id, self.limits.rate_per_minute, len(group), not_before_s
            )
            turns |= {lead.id: wait_s for lead, wait_s in zip(group, waits, strict=False)}
            for lead in group[len(waits) :]:
                self._requeue(self.reservations[lead.id])
                counters.line_waits.labels("rate").inc()
        return turns

    def _within_spend_cap(self, turns: dict[int, float]) -> dict[int, float]:
        """Return the turns that the organization's spending cap allows. The other leads are ready again."""
        if not turns:
            return turns
        allowed = spend_caps.reserve(self.limits.organization_id, price_sql.CALLS, len(turns), purpose=PURPOSE)
        for lead_id in list(turns)[allowed:]:
            self._requeue(self.reservations[lead_id])
            counters.line_waits.labels(spend_caps.REASON).inc()
        if allowed < len(turns):
            self.claimed.why, self.claimed.wait_s = spend_caps.REASON, STOPPED_S
        return dict(list(turns.items())[:allowed])

    def _new_call(self, lead: LeadFacts, context: BatchContext, turn_s: float) -> NewCall:
        campaign = context.campaigns[lead.campaign_id]
        latest = self.now + timedelta(seconds=settings.CALL_SEND_WINDOW_S)
        send_by = eligibility_rules.permitted_until(lead, campaign, context, latest)
        reservation = self.reservations[lead.id]
        number = self.limits.numbers[reservation.number_id]
        return NewCall(
            lead.organization_id,
            lead.id,
            reservation.attempt,
            lead.phone,
            number.account_id,
            reservation.number_id,
            number.phone,
            reservation.line_slot,
            self.limits.pool_id,
            reservation.pool_slot,
            campaign.ring_timeout_s,
            campaign.time_limit_s,
            campaign.detect_machines,
            campaign.dial,
            math.ceil(turn_s * 1000),
            math.floor((send_by - self.now).total_seconds() * 1000),
            lead.customer or campaign.customer,
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
                "now": self.as_of,
            },
        )
        for lead, verdict in later:
            self._reschedule(self.reservations[lead.id], verdict.until)
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
            self._record_outcome(self.reservations[lead.id], "gone")
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
            reservation = self.reservations[lead.id]
            data = {"outcome": outcome, "campaign_id": lead.campaign_id, "number": reservation.number_id}
            self.events.append(EventRow(lead.organization_id, "lead.simulated", lead.id, data))
            self._reschedule(reservation, until)
            counters.picked.labels(Reason.DRY_RUN).inc()

    # --- Outcomes of the reservations in Redis

    def _record_outcome(self, reservation: Reservation, what: str) -> None:
        self.outcomes[reservation.member] = ClaimOutcome(reservation.batch, reservation.member, what)

    def _requeue(self, reservation: Reservation, pool_id: int | None = None) -> None:
        goes_on_as = reservation.member
        if pool_id is not None:
            goes_on_as = f"{pool_id}:{reservation.lead_id}:{reservation.attempt}"
        self.outcomes[reservation.member] = ClaimOutcome(
            reservation.batch, reservation.member, "again", reservation.due_ms, goes_on_as
        )

    def _reschedule(self, reservation: Reservation, until: datetime, what: str = "later") -> None:
        self.outcomes[reservation.member] = ClaimOutcome(
            reservation.batch, reservation.member, what, redis_queue.to_ms(until), reservation.member
        )
