"""Subscribe members to reports, and send the reports that are due, each once.

A report is claimed by compare-and-set, and marked immediately before the mail server gets it. If the process dies
before the mark, another one sends it when the claim lapses; if it dies after the mark, the report may have been
sent and is not sent again. A failure of the mail server is retried. Each attempt reads the rights of the member.
"""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import structlog
from django.conf import settings
from django.db import transaction
from django.db.models import QuerySet

from accounts.models import Membership, Organization, ReportSubscription
from dispatch.console.reports import due_times, report_mail
from dispatch.console.reports.kinds import KINDS
from dispatch.core import clock, events, fault_injection
from dispatch.core.db.isolation import FailureRule, run_each, unlocked_ids
from dispatch.core.events import SYSTEM, Actor
from dispatch.core.languages import mark

log = structlog.get_logger(__name__)

BATCH = 20
# Longer than the statements of a report and the mail server can take.
CLAIM = timedelta(minutes=10)
RETRIES_S = (60, 300, 1800, 7200, 4 * 3600)
# A pass ends after this time, so that leadership can be handed over at shutdown.
MAX_PASS_S = 20.0
INTERVAL_S = 20.0
INTERRUPTED = mark("Interrupted while sending; it may not have arrived.")


def subscribe(
    membership: Membership, report: str, frequency: str, hour: int, *, actor: Actor
) -> ReportSubscription:
    """Subscribe the member to a report, or change the subscription. `hour` is in the organization's time zone."""
    due_at = due_times.next_due(frequency, hour, membership.organization.time_zone, clock.now())
    values: dict[str, Any] = {
        "frequency": frequency, "hour": hour, "due_at": due_at, "next_attempt_at": due_at, "attempts": 0,
        "sending_since": None, "error": "",
    }  # fmt: skip
    with transaction.atomic():
        row, is_new = ReportSubscription.objects.update_or_create(
            membership=membership,
            report=report,
            defaults=values,
            create_defaults={**values, "organization": membership.organization},
        )
        _append(row, "created" if is_new else "changed", actor, frequency=frequency, hour=hour)
    return row


def unsubscribe(row: ReportSubscription, why: str, *, actor: Actor = SYSTEM) -> None:
    """Delete the subscription. `why`: asked, link or rights."""
    with transaction.atomic():
        if ReportSubscription.objects.filter(pk=row.pk).delete()[0]:
            _append(row, "deleted", actor, why=why)


def move_due_times(organization_id: int) -> None:
    """Compute the next moments again, in the transaction that changes the organization's time zone."""
    zone = Organization.objects.values_list("time_zone", flat=True).get(pk=organization_id)
    for row in ReportSubscription.objects.of(organization_id).filter(sending_since=None, attempts=0):
        due_at = due_times.next_due(row.frequency, row.hour, zone, clock.now())
        ReportSubscription.objects.filter(pk=row.pk, sending_since=None, attempts=0).update(
            due_at=due_at, next_attempt_at=due_at
        )


def send_due() -> float | None:
    """Send the reports that are due. Ask to run again soon if there may be more."""
    deadline = time.monotonic() + MAX_PASS_S
    due = ReportSubscription.objects.filter(next_attempt_at__lte=clock.now()).order_by("next_attempt_at", "pk")
    ids = unlocked_ids(due, BATCH)
    run_each(
        lambda pk: send(pk) if time.monotonic() < deadline else 0,
        ids,
        event="report_mail_failed",
        rule=FailureRule[int](_postpone),
    )
    return 0 if len(ids) == BATCH or time.monotonic() >= deadline else None


def _postpone(pk: int) -> None:
    """Let the reports behind one that fails have their turn."""
    ReportSubscription.objects.filter(pk=pk).update(next_attempt_at=clock.now() + CLAIM)


def send(pk: int) -> int:
    """Send one report that is due. Return 0 if another process has it, or it is not sent."""
    row = _claim(pk)
    if row is None:
        return 0
    fault_injection.crash_point("reports.mail.claimed")
    zone, now = row.organization.time_zone, clock.now()
    try:
        slot = due_times.last_due(row.frequency, row.hour, zone, now)
        first, last = due_times.covered_days(row.frequency, slot, zone)
        message = report_mail.build_message(row, first, last, slot)
        if not _still(row).filter(**_RIGHTS).update(sending_since=now):
            return 0
        fault_injection.crash_point("reports.mail.sending")
        message.send()
    except Exception as error:  # any failure of a statement, a template or the mail server
        log.warning("report_not_sent", subscription=pk, error=str(error)[:200])
        _retry_later(row, str(error) or type(error).__name__)
        return 0
    fault_injection.crash_point("reports.mail.sent")
    _finish(row, "sent", first=f"{first}", last=f"{last}")
    return 1


_RIGHTS = {
    "membership__is_active": True,
    "membership__joined_at__isnull": False,
    "membership__user__is_active": True,
    "organization__is_active": True,
}


def _claim(pk: int) -> ReportSubscription | None:
    """Claim a report that is due. Return None if another process has it, or it must not be sent."""
    now = clock.now()
    rows = ReportSubscription.objects.select_related("membership__user", "organization")
    row = rows.filter(pk=pk, next_attempt_at__lte=now).first()
    if row is None:
        return None
    if row.sending_since is not None:
        _finish(row, "failed", INTERRUPTED)
        return None
    member = row.membership
    if row.report not in KINDS or not (member.is_active and member.joined_at and member.user.is_active):
        unsubscribe(row, "rights")
        return None
    if not row.organization.is_active or not settings.EMAIL_IS_SET_UP:
        error = mark("No mail server is configured.") if row.organization.is_active else mark("Inactive.")
        _finish(row, "failed", error)
        return None
    attempts, until = row.attempts + 1, now + CLAIM
    if not _still(row).update(attempts=attempts, next_attempt_at=until):
        return None
    row.attempts, row.next_attempt_at = attempts, until
    return row


def _still(row: ReportSubscription) -> QuerySet[ReportSubscription]:
    """Select the subscription if nobody has changed or claimed it since it was read."""
    rows: QuerySet[ReportSubscription] = ReportSubscription.objects.filter(
        pk=row.pk, attempts=row.attempts, next_attempt_at=row.next_attempt_at
    )
    return rows


def _retry_later(row: ReportSubscription, why: str) -> None:
    if row.attempts > len(RETRIES_S):
        _finish(row, "failed", why)
        return
    again = clock.now() + timedelta(seconds=RETRIES_S[row.attempts - 1])
    _still(row).update(sending_since=None, next_attempt_at=again, error=why[:200])


def _finish(row: ReportSubscription, verb: str, error: str = "", **data: Any) -> None:
    """Record the result, and wait for the next moment (compare-and-set)."""
    now = clock.now()
    due_at = due_times.next_due(row.frequency, row.hour, row.organization.time_zone, now)
    values: dict[str, Any] = {
        "due_at": due_at, "next_attempt_at": due_at, "attempts": 0, "sending_since": None, "error": error[:200],
    }  # fmt: skip
    if verb == "sent":
        values["sent_at"] = now
    with transaction.atomic():
        if _still(row).update(**values):
            _append(row, verb, SYSTEM, **data, **({"why": error[:200]} if error else {}))


def _append(row: ReportSubscription, verb: str, actor: Actor, **data: Any) -> None:
    events.append(
        row.organization_id, f"report_subscription.{verb}", row.pk, actor=actor, report=row.report,
        user_id=row.membership.user_id, **data,
    )  # fmt: skip


def subscription_of(membership: Membership | None, report: str) -> ReportSubscription | None:
    """Return the member's subscription to a report, if there is one."""
    if membership is None:
        return None
    rows: QuerySet[ReportSubscription] = ReportSubscription.objects.filter(membership=membership, report=report)
    return rows.first()
