"""Settling what nobody reported: requests that were cut off, unknown outcomes, ends that never came, hang-ups that
were not heard. Each function is one pass over what is due and returns how many calls it dealt with."""

from __future__ import annotations

from datetime import datetime, timedelta
from itertools import islice
from typing import Any

import structlog
from django.conf import settings
from django.db import transaction
from django.db.models import Q, QuerySet

from dispatch.core import clock
from dispatch.telephony import providers, rules
from dispatch.telephony.models import Call
from dispatch.telephony.providers.base import CallGone, ProviderTrouble
from dispatch.telephony.rules import Listed
from dispatch.telephony.services.hanging_up import end_after_commit, end_at_provider, lose
from dispatch.telephony.services.moving import PROVIDER, advance, keep, locked, tell
from dispatch.telephony.services.progress import apply_report

log = structlog.get_logger(__name__)

BATCH = 200
ASK_AGAIN = timedelta(seconds=60)
HANG_UP_AGAIN = timedelta(seconds=15)
Status = Call.Status
# With a SID; `unknown` too, when all that we heard of it is a status that we do not know.
OPEN_AT_PROVIDER = (Status.UNKNOWN, Status.SUBMITTED, Status.RINGING, Status.ANSWERED)


def doubt_cut_off_requests() -> int:
    """A request whose outcome nobody wrote, long after it must have been over, has an unknown outcome: its process
    died, before or after asking."""
    limit = clock.now() - timedelta(seconds=settings.PROVIDER_TIMEOUT_S)
    due = Call.objects.filter(status=Status.REQUESTING, send_by__lt=limit).values_list("pk", flat=True)[:BATCH]
    return sum(_doubt(call_id) for call_id in list(due))


def _doubt(call_id: int) -> int:
    with transaction.atomic():
        call = locked(call_id)
        changed = call.status == Status.REQUESTING and advance(
            call, Status.UNKNOWN, data={"why": "the request was cut off"}
        )
    if changed:
        tell(call)
    return int(changed)


def settle_unknowns() -> int:
    """Asks the provider for calls to the phones of unknown outcomes. Found: that is the call. Not found twice, a
    minute apart and long after the request: it was not placed, and only then may a new attempt start. A provider
    that lists nothing at all for a day: it is lost."""
    now = clock.now()
    unknown = Call.objects.filter(status=Status.UNKNOWN, sid=None).select_related("account").order_by("id")
    settled = 0
    waiting = (call for call in unknown if not call.empty_listings or _listing_counts(call, now))
    for call in islice(waiting, BATCH):  # for the others the next listing would say nothing new
        listed = _listed(call)
        if listed is not None:
            settled += _settle(call.pk, listed, now)
        elif _given_up(call, now):
            lose(call.pk, "the provider never listed its calls")
            settled += 1
    return settled


def _listing_counts(call: Call, now: datetime) -> bool:
    assert call.send_by is not None
    return rules.listing_counts(
        now,
        call.send_by,
        call.checked_at if call.empty_listings else None,
        settings.PROVIDER_TIMEOUT_S,
        settings.UNKNOWN_LISTING_GAP_S,
    )


def _listed(call: Call) -> list[Listed] | None:
    try:
        return providers.for_account(call.account).find_calls(str(call.to_phone), str(call.from_phone))
    except (ProviderTrouble, CallGone, providers.UnknownProvider) as error:
        log.warning("the provider did not list its calls", call=call.pk, error=str(error))
        return None


def _settle(call_id: int, listed: list[Listed], asked_at: datetime) -> int:
    with transaction.atomic():
        call = locked(call_id)
        if call.status != Status.UNKNOWN or call.sid is not None or call.requested_at is None:
            return 0
        # One account at the provider may be entered by several organizations: it lists the calls of all of them.
        same = Call.objects.filter(account__account_sid=call.account.account_sid)
        known: set[Any] = set(same.filter(sid__in=[one.sid for one in listed]).values_list("sid", flat=True))
        ours = rules.ours_among(listed, call.requested_at, known)
        if ours is not None:
            keep(call, sid=ours.sid)
            changed = advance(call, ours.status, actor=PROVIDER, data={"found": "in the provider's list"})
            if call.cancel_requested_at is not None and call.ended_at is None:
                end_after_commit(call)
        elif not _listing_counts(call, asked_at):
            return 0
        elif call.empty_listings:
            changed = advance(call, Status.NOT_PLACED, error_message="the provider has no such call")
        else:
            keep(call, empty_listings=1, checked_at=asked_at)
            return 0
    if changed:
        tell(call)
    return int(changed)


def ask_for_ends() -> int:
    """Fetches calls whose end should have been reported by now; one that the provider does not know is lost."""
    now = clock.now()
    due = _not_asked_since(now - ASK_AGAIN).filter(status__in=OPEN_AT_PROVIDER, sid__isnull=False)
    overdue = (call for call in due.select_related("account").order_by("id") if _end_expected_by(call) <= now)
    asked = list(islice(overdue, BATCH))
    for call in asked:
        _ask_for_end(call, now)
    return len(asked)


def _end_expected_by(call: Call) -> datetime:
    since = call.requested_at or call.created_at
    return rules.end_expected_by(since, call.answered_at, call.ring_timeout_s, call.time_limit_s)


def _ask_for_end(call: Call, now: datetime) -> None:
    Call.objects.filter(pk=call.pk).update(checked_at=now)
    try:
        assert call.sid is not None
        apply_report(call.pk, providers.for_account(call.account).fetch(call.sid))
    except CallGone:
        lose(call.pk, "the provider does not know it")
    except (ProviderTrouble, providers.UnknownProvider) as error:
        log.warning("the provider did not say how a call stands", call=call.pk, error=str(error))
        if _given_up(call, now):
            lose(call.pk, "the provider gave no answer")


def _given_up(call: Call, now: datetime) -> bool:
    """Whether even a call that the provider had queued for a day would be over."""
    return now > (call.requested_at or call.created_at) + rules.GIVE_UP_AFTER


def hang_up_again() -> int:
    """Asks again for the end of calls that were to be hung up and are still open."""
    due = _not_asked_since(clock.now() - HANG_UP_AGAIN).filter(
        cancel_requested_at__isnull=False, sid__isnull=False, status__in=OPEN_AT_PROVIDER
    )
    ids = list(due.values_list("pk", flat=True)[:BATCH])
    for call_id in ids:
        end_at_provider(call_id)
    return len(ids)


def _not_asked_since(moment: datetime) -> QuerySet[Call]:
    asked: QuerySet[Call] = Call.objects.filter(Q(checked_at=None) | Q(checked_at__lt=moment), ended_at=None)
    return asked
