"""Make a dispatching job wait, if nobody can be called now: for a line, a technician, the provider or quiet hours.

While others are being called for the job, it goes on waiting for their answers and tries again soon. Otherwise its
wait is limited.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from dispatch.capacity import account_outages
from dispatch.capacity.account_outages import Outage
from dispatch.capacity.models import DispatchPool
from dispatch.core import clock
from dispatch.jobs import rules
from dispatch.jobs.models import Job
from dispatch.jobs.rules import CascadePolicy, Slots
from dispatch.jobs.services import line_wakeups, ranking, slots, transitions
from dispatch.jobs.services.transitions import Waiting
from dispatch.jobs.sql import DispatchReadiness, OfferRow
from dispatch.telephony import services as telephony

# Why no call can be made → the job's `waiting_for`, and its pending reason if the wait ends without success.
REASONS = {
    str(Outage.NO_ANSWER): (Waiting.PROVIDER, Job.PendingReason.PROVIDER_DOWN),
    str(Outage.REFUSED): (Waiting.ACCOUNT, Job.PendingReason.ACCOUNT_REFUSED),
    telephony.SPEND_CAP: (Waiting.SPEND_CAP, Job.PendingReason.SPEND_CAP),
}
# Minimum and maximum delay before the next try to reserve a line (seconds).
LINE_POLL_S = (1.0, 15.0)
# Poll interval of a job that waits for a technician with another offer (seconds). Once one of its technicians is
# free, the loop of waiting jobs tries it immediately.
TECHNICIAN_POLL_S = 10.0
# Poll interval of a job that already calls others and waits to call another technician (seconds).
OTHERS_POLL_S = 3.0
# Poll interval of a job that waits for the provider; the account's circuit breaker decides (seconds).
PROVIDER_POLL_S = 3.0


@dataclass(frozen=True)
class CascadeState:
    """The facts for one step of the cascade: the job's frozen policy, its rows, slots and pending offers."""

    policy: CascadePolicy
    readiness: DispatchReadiness
    slots: Slots
    pending: list[OfferRow]


def wait_for_technician(job: Job, state: CascadeState) -> None:
    """Wait for technicians with another offer."""
    if state.pending:
        slots.wait_for_others(job, state.pending, state.slots, OTHERS_POLL_S)
        return
    job.line_wait_until = None
    if job.technician_wait_until is None:
        job.technician_wait_until = transitions.seconds_from_now(state.policy.technician_wait_s)
    at = min(transitions.seconds_from_now(TECHNICIAN_POLL_S), job.technician_wait_until)
    _wait_for(job, Waiting.TECHNICIAN, at, job.technician_wait_until)
    line_wakeups.mark_waiting_for_technician()


def wait_for_line(job: Job, state: CascadeState, retry_in_s: float) -> None:
    """Wait for a line, and try again in `retry_in_s` seconds."""
    pause_s = min(max(retry_in_s, LINE_POLL_S[0]), LINE_POLL_S[1])
    if state.pending:
        slots.wait_for_others(job, state.pending, state.slots, pause_s)
        return
    job.line_pool = state.readiness.pool
    if job.line_wait_until is None:
        job.line_wait_until = transitions.seconds_from_now(state.policy.line_wait_s)
    at = min(transitions.seconds_from_now(pause_s), job.line_wait_until)
    _wait_for(job, Waiting.LINE, at, job.line_wait_until)
    line_wakeups.mark_waiting()


def wait_for_hold(job: Job, hold: ranking.Hold) -> None:
    """Wait for the end of quiet hours, or until it is time to call for the arrival window."""
    if (job.waiting_for, job.next_action_at) == hold:
        return
    ranking.hold_job(job, hold)
    transitions.save_job(job)
    ranking.announce_hold(job)


def wait_for_provider(job: Job, state: CascadeState, last: OfferRow | None) -> None:
    """Wait for the provider: nobody can be called. The ranking is kept. `last`: the withdrawn offer."""
    if state.pending:
        slots.wait_for_others(job, state.pending, state.slots, PROVIDER_POLL_S)
        return
    if job.line_wait_until is None:
        job.line_wait_until = transitions.seconds_from_now(state.policy.line_wait_s)
    if clock.now() >= job.line_wait_until:
        give_up_waiting(job, state, last)
        return
    obstacle, _ = _obstacle(job, state.readiness.pool, last)
    waiting_for = REASONS[obstacle][0] if obstacle else Waiting.PROVIDER
    at = min(transitions.seconds_from_now(PROVIDER_POLL_S), job.line_wait_until)
    _wait_for(job, waiting_for, at, job.line_wait_until)


def give_up_waiting(job: Job, state: CascadeState, last: OfferRow | None) -> None:
    """Make the job pending after its wait for a line, and record the cause as the reason."""
    obstacle, words = _obstacle(job, state.readiness.pool, last)
    waited_s = state.policy.line_wait_s
    if obstacle is None:
        transitions.mark_pending(job, Job.PendingReason.NO_LINE, waited_s=waited_s)
    else:
        transitions.mark_pending(job, REASONS[obstacle][1], waited_s=waited_s, reason_text=words)


def _obstacle(job: Job, pool: DispatchPool | None, last: OfferRow | None) -> tuple[str | None, str]:
    """Return why no call can be made, a key of `REASONS`, and a text for dispatchers.

    That is the spending cap or an outage of the pool's accounts; without both, the reason for the last withdrawal.
    """
    if hold := telephony.spend_hold(job.organization_id, "offer"):
        return telephony.SPEND_CAP, str(hold)
    account = account_outages.outage_of_pool(pool.pk) if pool else None
    if account is not None:
        return Outage(account.outage), account_outages.describe(account)
    if last is None or last.outcome not in rules.WITHDRAWN:
        return None, ""
    if last.outcome == rules.Outcome.PROVIDER_SILENT:
        return Outage.NO_ANSWER, account_outages.DESCRIPTIONS[Outage.NO_ANSWER]
    return Outage.REFUSED, last.reason[:1].upper() + last.reason[1:]


def _wait_for(job: Job, waiting_for: Waiting, at: datetime, until: datetime) -> None:
    """Make the job wait, and keep the step token because a poll is not a new step."""
    new = job.waiting_for != waiting_for
    transitions.wait_for(job, waiting_for, at, new_token=False)
    transitions.save_job(job, visible=new)
    if new:
        transitions.append_job_event(job, "job.waiting", waiting_for=str(waiting_for), until=until.isoformat())
