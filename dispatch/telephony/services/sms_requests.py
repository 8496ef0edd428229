"""Request texts from the provider: at most one possibly processed request per row."""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import partial

import structlog
from django.conf import settings
from django.db import connection, transaction
from django.db.models import Q

from dispatch.capacity import account_outages
from dispatch.capacity.models import ProviderAccount
from dispatch.core import clock, fault_injection
from dispatch.core.db import prepared
from dispatch.core.db.isolation import run_unlocked
from dispatch.core.db.lock_waits import RecentlyBlocked
from dispatch.core.runtime.queues import notify_loop
from dispatch.telephony import price_sql, providers, request_threads, rules, sms_rules, sql, webhook_urls
from dispatch.telephony.handlers import find_hold, sent_body, text_handler_for
from dispatch.telephony.models import OptOut, Text
from dispatch.telephony.providers.base import (
    CallGone,
    ListedText,
    Outcome,
    ProviderError,
    RateLimited,
    Rejected,
    Submitted,
    TextRequest,
    Unknown,
)
from dispatch.telephony.request_threads import LOOKUPS, failing_accounts, start_due
from dispatch.telephony.services import sms, spend_caps
from dispatch.telephony.services.call_requests import report_outcome
from dispatch.telephony.services.calls import PROVIDER
from dispatch.telephony.services.sms import (
    Status,
    append_text_event,
    is_opted_out,
    lock_text,
    notify_handler,
    transition,
    update_fields,
)
from dispatch.telephony.services.text_failures import report_failure
from dispatch.telephony.services.text_matches import MatchUncertain, find_listed_text, take_sid

log = structlog.get_logger(__name__)

PAUSED_RETRY, OUTAGE_RETRY = timedelta(seconds=2), timedelta(seconds=5)
# A raised cap wakes the texts that wait for it (`wake_held_texts`).
CAP_RETRY = timedelta(seconds=60)
BATCH = 200
# Texts of these purposes come from a certain number: the one that was texted, or that is being tested.
OF_THEIR_NUMBER = (Text.Purpose.REPLY, Text.Purpose.TEST)
UNKNOWN = "text_not_resolved"
_failed_texts, _unresolved_texts = RecentlyBlocked(60.0, longest_s=3600.0), RecentlyBlocked(60.0, longest_s=3600.0)
_PACE = "SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))"


def send_text(text_id: int) -> Text:
    """Request a due, created text from the provider, write the outcome, and return the text.

    Call it outside any transaction. Idempotent: any text that is not created and due is left unchanged. Raises
    Text.DoesNotExist.
    """
    text, changed = _claim(text_id)
    if text.status == Status.REQUESTING and changed:
        fault_injection.crash_point("telephony.text.claimed")
        outcome = _request(text)
        fault_injection.crash_point("telephony.text.sent")
        text = _record_outcome(text_id, outcome)
    if changed:
        notify_handler(text)
    return text


def _claim(text_id: int) -> tuple[Text, bool]:
    """Move the text from created to requesting if nothing forbids it. Return it and whether its status moved."""
    with transaction.atomic():
        text = lock_text(text_id, "account", "number", "organization")
        if text.status != Status.CREATED:
            return text, False
        now = clock.now()
        if is_opted_out(text.organization_id, text.to_phone):
            return text, transition(text, Status.CANCELED, error_message="opted out of texts")
        if (now >= text.not_before or now >= text.not_after) and (hold := find_hold(text)) is not None:
            _hold(text, *hold)
            return text, False
        if now >= text.not_after:
            why = text.error_message or "its deadline had passed"
            return text, transition(text, Status.NOT_SENT, error_message=why)
        if now < text.not_before:
            return text, False
        handler = text_handler_for(text.purpose)
        if handler is not None and not handler.should_send(text):
            return text, transition(text, Status.CANCELED, error_message="no longer needed")
        if not account_outages.is_usable(text.account) and not _reroute(text):
            _postpone_for_outage(text, now)
            return text, False
        may_send = text.number.sends_texts and text.account.is_active and text.organization.is_active
        if text.number.is_paused or not may_send:
            sql.postpone_texts_of_number(text, PAUSED_RETRY.total_seconds(), now)
            text.refresh_from_db(fields=["not_before"])
            return text, False
        if (free_at := _free_at(text)) > now:
            sql.space_texts(text.number_id, free_at, 1 / text.number.texts_per_second, now)
            text.refresh_from_db(fields=["not_before"])
            return text, False
        if not spend_caps.reserve(text.organization_id, price_sql.TEXTS, purpose=text.purpose):
            _hold_for_cap(text, now)
            return text, False
        send_by = min(now + timedelta(seconds=settings.CALL_SEND_WINDOW_S), text.not_after)
        return text, transition(text, Status.REQUESTING, requested_at=now, send_by=send_by, error_message="")


def _reroute(text: Text) -> bool:
    """Have another number send the text during its account's outage. Return False if none may."""
    substitute = None if text.purpose in OF_THEIR_NUMBER else sms.find_substitute(text.number, str(text.to_phone))
    if substitute is None:
        return False
    why = account_outages.describe(text.account)
    text.account, text.number = substitute.account, substitute
    update_fields(text, "account", "number", from_phone=str(substitute.phone))
    append_text_event(text, "rerouted", number=str(substitute.phone), why=why)
    return True


def _postpone_for_outage(text: Text, now: datetime) -> None:
    """Make a text that cannot be rerouted wait for its account, with the others of its number that cannot."""
    pause_s = OUTAGE_RETRY.total_seconds()
    if not account_outages.substitute_senders(text.number):
        sql.postpone_texts_of_number(text, pause_s, now)
    elif text.purpose in OF_THEIR_NUMBER:
        sql.postpone_texts_of_number(text, pause_s, now, OF_THEIR_NUMBER)
    else:  # only its phone cannot be texted from another number
        update_fields(text, not_before=now + OUTAGE_RETRY)
        return
    text.refresh_from_db(fields=["not_before"])


def _hold_for_cap(text: Text, now: datetime) -> None:
    """Make the text wait for the spending cap; with it the organization's others that were held back before."""
    hold = spend_caps.find_hold(text.organization_id, price_sql.TEXTS)
    why = str(hold) if hold else f"{spend_caps.REACHED} is reached."
    if text.error_message == why:
        sql.postpone_held_texts(text, CAP_RETRY.total_seconds(), now)
        text.refresh_from_db(fields=["not_before"])
    else:
        _hold(text, now + CAP_RETRY, text.not_after, why)


def _hold(text: Text, not_before: datetime, not_after: datetime, why: str) -> None:
    """Make the text wait, and say so once."""
    is_new = text.error_message != why
    update_fields(text, not_before=not_before, not_after=not_after, error_message=why)
    if is_new and why:
        append_text_event(text, "held_back", retry_in_s=(not_before - clock.now()).total_seconds(), why=why)


def wake_held_texts(organization_id: int) -> None:
    """Make the organization's texts that wait for its spending cap due after the commit."""
    wake_texts(Q(organization_id=organization_id, error_message__startswith=spend_caps.REACHED))


def wake_texts(where: Q) -> None:
    """Make these texts due after the commit, if they wait.

    Not before it: a claim locks its text first and then what holds it, which this transaction has locked.
    """
    transaction.on_commit(partial(_wake_texts, where), robust=True)


def _wake_texts(where: Q) -> None:
    held = Text.objects.filter(where, status=Status.CREATED, not_before__gt=clock.now())
    held.update(not_before=clock.now())
    notify_loop(sms.TEXT_LOOP)


def _free_at(text: Text) -> datetime:
    """Return when the number may send again; the provider counts segments.

    Only PostgreSQL decides: texts are few, and each row has the time of its request. Holds the number's advisory
    lock until the end of the transaction.
    """
    with connection.cursor() as cursor:
        cursor.execute(_PACE, [f"texts:number:{text.number_id}"])
    texts = Text.objects.filter(number_id=text.number_id, requested_at__isnull=False).order_by("-requested_at")
    last = texts.values_list("requested_at", "body").first()
    if last is None or last[0] is None:
        return text.not_before
    return last[0] + timedelta(seconds=sms_rules.segments(last[1]) / text.number.texts_per_second)


def _request(text: Text) -> Outcome:
    try:
        provider = providers.for_account(text.account)
    except Exception as error:
        log.exception("provider_unusable", account=text.account_id)
        return Rejected(False, "", str(error)[:255], "configuration", True)
    assert text.send_by is not None
    left_s = (text.send_by - clock.now()).total_seconds()
    if left_s <= 0:
        # this process stalled after the claim; nothing was sent, so the text may be claimed again
        return RateLimited(0.0, "the claim expired before the request was sent")
    return provider.send_text(
        TextRequest(
            to=str(text.to_phone),
            from_=text.from_phone,
            body=sent_body(text),
            status_url=webhook_urls.text_webhook(text),
            leave_within_s=left_s,
            service=text.number.messaging_service_sid,
            valid_s=int((text.not_after - clock.now()).total_seconds()),
        )
    )


def _record_outcome(text_id: int, outcome: Outcome) -> Text:
    """Write the outcome. If a webhook or the reconciler was faster, its result stands."""
    with transaction.atomic():
        text = lock_text(text_id, "account", "number")
        if isinstance(outcome, Submitted):
            if text.sid != outcome.sid and take_sid(text, outcome.sid):
                transition(text, Status.SUBMITTED, actor=PROVIDER)
        elif isinstance(outcome, RateLimited):
            if text.status == Status.REQUESTING and text.sid is None:
                retry_at = clock.now() + timedelta(seconds=outcome.retry_after_s)
                update_fields(text, status=Status.CREATED, not_before=retry_at, send_by=None)
                append_text_event(
                    text, "held_back", PROVIDER, retry_in_s=outcome.retry_after_s, why=outcome.reason
                )
        elif isinstance(outcome, Rejected) and text.sid is None and _requeue_refused(text, outcome):
            notify_loop(sms.TEXT_LOOP)
            return text
        elif isinstance(outcome, Rejected) and text.sid is None:
            refusal = {"error_code": outcome.code, "error_message": outcome.message}
            if transition(text, Status.REJECTED, actor=PROVIDER, **refusal) and not outcome.is_account_wide:
                report_failure(text)
            if outcome.kind == "opted_out":
                sms.opt_out(text.organization_id, text.to_phone, source=OptOut.Source.PROVIDER, actor=PROVIDER)
        elif isinstance(outcome, Unknown) and text.sid is None:
            transition(text, Status.UNKNOWN, error_message=outcome.reason[:255])
        _report_outcome(text.account_id, outcome)
    return text


def _requeue_refused(text: Text, outcome: Rejected) -> bool:
    """Requeue a text because the provider refuses its whole account, if another account may send it."""
    if not outcome.is_account_wide or text.status != Status.REQUESTING:
        return False
    _report_outcome(text.account_id, outcome)
    text.account.refresh_from_db()
    text.number.account = text.account
    if not _reroute(text):
        return False
    update_fields(text, status=Status.CREATED, not_before=clock.now(), requested_at=None, send_by=None)
    return True


def _report_outcome(account_id: int, outcome: Outcome) -> None:
    """Update the account's circuit breaker with the outcome of a text.

    A text proves whether the provider responds, and whether it refuses the whole account. A number that may not
    send texts may still place calls.
    """
    if isinstance(outcome, Submitted):
        if ProviderAccount.objects.filter(pk=account_id).exclude(outage=account_outages.Outage.REFUSED).exists():
            account_outages.record_success(account_id)
    elif not isinstance(outcome, Rejected) or outcome.is_account_wide:
        report_outcome(account_id, outcome)


# --- reconciliation ---------------------------------------------------------------------------------------------

# Carriers may hold a text for days, and many never confirm the delivery.
REPORTED_WITHIN = timedelta(days=3)


def end_unreported_texts() -> int:
    """End texts whose delivery will no longer be reported, with their current status. Return how many."""
    now = clock.now()
    silent = Text.objects.filter(
        status__in=(Status.SUBMITTED, Status.SENT), ended_at=None, submitted_at__lt=now - REPORTED_WITHIN
    )
    return silent.update(ended_at=now)


def resolve_unknown_texts() -> bool:
    """Mark interrupted requests as unknown, and look up unknown texts in the provider's list.

    A matching listed text is adopted. After two empty listings, a minute apart and long after the request, the
    text was not sent. Returns whether more lookups are due.
    """
    now = clock.now()
    limit = now - timedelta(seconds=settings.PROVIDER_TIMEOUT_S)
    cut_off = Text.objects.filter(status=Status.REQUESTING, send_by__lt=limit).order_by("id")
    run_unlocked(_mark_unknown, cut_off, BATCH, event="text_not_reconciled", skipped=_failed_texts)
    but = request_threads.busy_ids(LOOKUPS, UNKNOWN) | _unresolved_texts.keys()
    due = sql.unknown_rows(Text, now, BATCH, but, LOOKUPS.full_keys() | failing_accounts.ids())
    has_waiting = start_due(LOOKUPS, due, _claim_listing, _look_up, event=UNKNOWN, skipped=_unresolved_texts)
    return has_waiting or len(due) == BATCH


def _claim_listing(text_id: int) -> Text | None:
    with transaction.atomic():
        prepared.defer_fsync()
        text = lock_text(text_id, "account")
        now = clock.now()
        if text.status != Status.UNKNOWN or text.sid is not None:
            return None
        if text.empty_listings:  # `checked_at` is when the first listing was empty
            return text if _listing_counts(text, now) else None
        update_fields(text, checked_at=now)
        return text


def _mark_unknown(text_id: int) -> int:
    return int(_move(text_id, Status.REQUESTING, Status.UNKNOWN, "the request was interrupted"))


def _move(text_id: int, before: Status, after: Status, why: str) -> bool:
    """Move the text from one status to another. Return False if it has a third one by now."""
    with transaction.atomic():
        text = lock_text(text_id)
        changed = text.status == before and transition(text, after, error_message=why)
    if changed:
        notify_handler(text)
    return changed


def _look_up(text: Text) -> None:
    asked_at = clock.now()
    try:
        listed = providers.for_account(text.account).find_texts(str(text.to_phone), text.from_phone)
    except (ProviderError, CallGone, providers.UnknownProvider) as error:
        failing_accounts.add(text.account_id)
        log.warning("provider_text_listing_failed", text=text.pk, error=str(error))
        if asked_at < (text.requested_at or text.created_at) + rules.GIVE_UP_AFTER:
            # the account's next texts have their turn first
            Text.objects.filter(pk=text.pk, status=Status.UNKNOWN).update(checked_at=asked_at)
            return
        why = "the provider never listed its texts, so it may have been sent"
        _move(text.pk, Status.UNKNOWN, Status.NOT_SENT, why)
    else:
        failing_accounts.discard(text.account_id)
        _resolve(text.pk, listed, asked_at)


def _resolve(text_id: int, listed: list[ListedText], asked_at: datetime) -> bool:
    with transaction.atomic():
        text = lock_text(text_id)
        if text.status != Status.UNKNOWN or text.sid is not None or text.requested_at is None:
            return False
        try:
            ours = find_listed_text(text, listed)
        except MatchUncertain:  # it will be known soon
            return False
        if ours is not None:
            text.sid = ours.sid
            changed = transition(text, ours.status, actor=PROVIDER, sid=ours.sid)
        elif not _listing_counts(text, asked_at):
            return False
        elif text.empty_listings:
            changed = transition(text, Status.NOT_SENT, error_message="the provider has no such text")
        else:
            update_fields(text, empty_listings=1, checked_at=asked_at)
            return False
    if changed:
        notify_handler(text)
    return changed


def _listing_counts(text: Text, now: datetime) -> bool:
    assert text.send_by is not None
    return rules.listing_counts(
        now,
        text.send_by,
        text.checked_at if text.empty_listings else None,
        settings.PROVIDER_TIMEOUT_S,
        settings.UNKNOWN_LISTING_GAP_S,
    )
