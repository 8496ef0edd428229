"""Asking the provider to send a text: at most one possibly processed request for each row."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import structlog
from django.conf import settings
from django.db import connection, transaction

from dispatch.core import clock, faults
from dispatch.telephony import addresses, providers, rules
from dispatch.telephony.models import OptOut, Text
from dispatch.telephony.providers.base import (
    CallGone,
    ListedText,
    Outcome,
    ProviderTrouble,
    RateLimited,
    Rejected,
    Submitted,
    Unknown,
)
from dispatch.telephony.purposes import text_handler_for
from dispatch.telephony.services import opting
from dispatch.telephony.services.moving import PROVIDER
from dispatch.telephony.services.texting import Status, advance, is_opted_out, keep, locked, record, tell

log = structlog.get_logger(__name__)

PAUSED_RETRY = timedelta(seconds=2)
BATCH = 200
_PACE = "SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))"


def send(text_id: int) -> Text:
    """Asks the provider for a created text whose time has come, and writes what came of it; the text as it is
    then.

    Outside of any transaction. Anything else than a created, due text is left as it is, so anybody may call this
    at any time, twice too. Raises Text.DoesNotExist."""
    text, changed = _claim(text_id)
    if text.status == Status.REQUESTING and changed:
        faults.point("telephony.text.claimed")
        outcome = _ask(text)
        faults.point("telephony.text.sent")
        text = _write(text_id, outcome)
    if changed:
        tell(text)
    return text


def _claim(text_id: int) -> tuple[Text, bool]:
    """created → requesting, when nothing speaks against it. The text, and whether its status moved."""
    with transaction.atomic():
        text = locked(text_id, "account", "number")
        if text.status != Status.CREATED:
            return text, False
        now = clock.now()
        if is_opted_out(text.organization_id, text.to_phone):
            return text, advance(text, Status.CANCELED, error_message="opted out of texts")
        if now >= text.not_after:
            return text, advance(text, Status.NOT_SENT, error_message="its time had passed")
        if now < text.not_before:
            return text, False
        handler = text_handler_for(text.purpose)
        if handler is not None and not handler.wanted(text):
            return text, advance(text, Status.CANCELED, error_message="not wanted any more")
        if text.number.is_paused or not text.number.sends_texts or not text.account.is_active:
            keep(text, not_before=now + PAUSED_RETRY)
            return text, False
        if (free_at := _free_at(text)) > now:
            keep(text, not_before=free_at)
            return text, False
        send_by = min(now + timedelta(seconds=settings.CALL_SEND_WINDOW_S), text.not_after)
        return text, advance(text, Status.REQUESTING, requested_at=now, send_by=send_by)


def _free_at(text: Text) -> datetime:
    """When the number may send again. Postgres alone decides: texts are few, and a request's moment is on its
    row. Holds the number's pace until the transaction ends."""
    with connection.cursor() as cursor:
        cursor.execute(_PACE, [f"texts:number:{text.number_id}"])
    last = Text.objects.filter(number_id=text.number_id, requested_at__isnull=False).order_by("-requested_at")
    before = last.values_list("requested_at", flat=True).first()
    return text.not_before if before is None else before + timedelta(seconds=1 / text.number.texts_per_second)


def _ask(text: Text) -> Outcome:
    try:
        provider = providers.for_account(text.account)
    except Exception as error:
        log.exception("the account's provider cannot be used", account=text.account_id)
        return Rejected(False, "", str(error)[:255], "configuration")
    assert text.send_by is not None
    left_s = (text.send_by - clock.now()).total_seconds()
    if left_s <= 0:
        # it was claimed, and this process slept; nothing was sent, so another may claim it
        return RateLimited(0.0, "the claim had lapsed before it was sent")
    return provider.send_text(
        str(text.to_phone), text.from_phone, text.body, addresses.text_webhook(text), leave_within_s=left_s
    )


def _write(text_id: int, outcome: Outcome) -> Text:
    """Writes the outcome; a webhook or the reconciler may have been faster, and then knows better."""
    with transaction.atomic():
        text = locked(text_id)
        if isinstance(outcome, Submitted):
            if text.sid is None:
                text.sid = outcome.sid
                if not advance(text, Status.SUBMITTED, actor=PROVIDER, sid=outcome.sid):
                    keep(text, sid=outcome.sid)
        elif isinstance(outcome, RateLimited):
            if text.status == Status.REQUESTING and text.sid is None:
                again = clock.now() + timedelta(seconds=outcome.retry_after_s)
                keep(text, status=Status.CREATED, not_before=again, send_by=None)
                record(text, "held_back", PROVIDER, retry_in_s=outcome.retry_after_s, why=outcome.reason)
        elif isinstance(outcome, Rejected) and text.sid is None:
            advance(
                text,
                Status.REJECTED,
                actor=PROVIDER,
                error_code=outcome.code,
                error_message=outcome.message,
            )
            if outcome.kind == "opted_out":
                opting.opt_out(text.organization_id, text.to_phone, source=OptOut.Source.PROVIDER, actor=PROVIDER)
        elif isinstance(outcome, Unknown) and text.sid is None:
            advance(text, Status.UNKNOWN, error_message=outcome.reason[:255])
    return text


# --- settling what nobody reported ------------------------------------------------------------------------------

# Carriers may hold a text for days, and many never say that it arrived.
REPORTED_WITHIN = timedelta(days=3)


def stop_waiting_for_reports() -> int:
    """Texts of whose delivery nobody will speak any more are over, with the status they have; how many."""
    now = clock.now()
    silent = Text.objects.filter(
        status__in=(Status.SUBMITTED, Status.SENT), ended_at=None, submitted_at__lt=now - REPORTED_WITHIN
    )
    return silent.update(ended_at=now)


def settle_doubts() -> int:
    """Requests that were cut off have an unknown outcome; of the unknown the provider is asked. Found: that is the
    text. Not found twice, a minute apart and long after the request: it was not sent. How many moved."""
    limit = clock.now() - timedelta(seconds=settings.PROVIDER_TIMEOUT_S)
    cut_off = Text.objects.filter(status=Status.REQUESTING, send_by__lt=limit).values_list("pk", flat=True)
    moved = sum(_doubt(pk) for pk in list(cut_off[:BATCH]))
    unknown = Text.objects.filter(status=Status.UNKNOWN, sid=None).select_related("account").order_by("id")
    for text in unknown[:BATCH]:
        moved += _look_for(text)
    return moved


def _doubt(text_id: int) -> int:
    with transaction.atomic():
        text = locked(text_id)
        changed = text.status == Status.REQUESTING and advance(
            text, Status.UNKNOWN, error_message="the request was cut off"
        )
    if changed:
        tell(text)
    return int(changed)


def _look_for(text: Text) -> int:
    asked_at = clock.now()
    if text.empty_listings and not _counts(text, asked_at):
        return 0
    try:
        listed = providers.for_account(text.account).find_texts(str(text.to_phone), text.from_phone)
    except (ProviderTrouble, CallGone, providers.UnknownProvider) as error:
        log.warning("the provider did not list its texts", text=text.pk, error=str(error))
        if asked_at < (text.requested_at or text.created_at) + rules.GIVE_UP_AFTER:
            return 0
        listed = []
    changed = _settle(text.pk, listed, asked_at)
    return int(changed)


def _settle(text_id: int, listed: list[ListedText], asked_at: datetime) -> bool:
    with transaction.atomic():
        text = locked(text_id)
        if text.status != Status.UNKNOWN or text.sid is not None or text.requested_at is None:
            return False
        same = Text.objects.filter(account__account_sid=text.account.account_sid)
        known: set[Any] = set(same.filter(sid__in=[one.sid for one in listed]).values_list("sid", flat=True))
        alike = [one for one in listed if one.body == text.body]
        ours = rules.ours_among(alike, text.requested_at, known)
        if ours is not None:
            text.sid = ours.sid
            changed = advance(text, ours.status, actor=PROVIDER, sid=ours.sid)
        elif not _counts(text, asked_at):
            return False
        elif text.empty_listings:
            changed = advance(text, Status.NOT_SENT, error_message="the provider has no such text")
        else:
            keep(text, empty_listings=1, checked_at=asked_at)
            return False
    if changed:
        tell(text)
    return changed


def _counts(text: Text, now: datetime) -> bool:
    assert text.send_by is not None
    return rules.listing_counts(
        now,
        text.send_by,
        text.checked_at if text.empty_listings else None,
        settings.PROVIDER_TIMEOUT_S,
        settings.UNKNOWN_LISTING_GAP_S,
    )
