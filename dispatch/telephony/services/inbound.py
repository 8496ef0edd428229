"""Handle inbound texts and calls, and the provider's reports on outbound texts."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

import structlog
from django.conf import settings
from django.db import transaction

from dispatch.capacity.models import OutboundNumber, ProviderAccount
from dispatch.core import clock, events, fault_injection, languages
from dispatch.core.db import fast_rows, lock_waits, prepared
from dispatch.core.db.isolation import FailureRule, run_each, run_unlocked
from dispatch.core.db.lock_waits import RecentlyBlocked
from dispatch.core.languages import gettext
from dispatch.telephony import metrics, sms_rules
from dispatch.telephony.errors import NoTextNumber, TextNotAllowed, WrongCall
from dispatch.telephony.handlers import VoicePrompt, inbound_handlers
from dispatch.telephony.models import Call, InboundCall, OptOut, Text
from dispatch.telephony.providers.base import IncomingWebhook, TextReport
from dispatch.telephony.services import sms
from dispatch.telephony.services.calls import PROVIDER
from dispatch.telephony.services.keys import GIVE_UP_AFTER, RETRY_AFTER, PressedKey
from dispatch.telephony.services.keys import TAKE_OVER_AFTER as TAKE_OVER_KEY_AFTER
from dispatch.telephony.services.sms import (
    append_text_event,
    create_text,
    is_opted_out,
    lock_text,
    notify_handler,
    transition,
    update_fields,
)
from dispatch.telephony.services.text_failures import report_failure
from dispatch.telephony.services.text_matches import take_sid
from dispatch.telephony.speech import speaking, speech_for

log = structlog.get_logger(__name__)

# Age from which the loop processes a text that its webhook stored but did not process.
TAKE_OVER_AFTER = timedelta(seconds=20)
MAX_CALL_DURATION = timedelta(days=1)
BATCH = 100
# How many answers of a call are remembered. The provider repeats a request within seconds.
REMEMBERED_ANSWERS = 20
_failed_texts = RecentlyBlocked(60.0, longest_s=3600.0)
_failed_calls = RecentlyBlocked(60.0, longest_s=3600.0)


def apply_text_report(
    text_id: int, report: TextReport, is_signed_by: Callable[[ProviderAccount], bool] = lambda _: True
) -> Text:
    """Apply a status webhook, verified by `is_signed_by`, to an outbound text. A repeated one changes nothing.

    The text and its account are read once, locked; a request that does not name the account locks nothing. The
    first webhook also establishes which text at the provider is ours. Raises WrongCall if it is about another text
    or account, or not verified.
    """
    with transaction.atomic():
        condition = "t.id = %s AND r1.account_sid = %s"
        text = fast_rows.fetch_one(Text, condition, [text_id, report.account_sid], "account", lock=True)
        if text is None or not is_signed_by(text.account):
            raise WrongCall
        if text.direction != Text.Direction.OUT or not report.sid:
            raise WrongCall
        if text.sid != report.sid and not take_sid(text, report.sid):
            raise WrongCall
        errors = {"error_code": report.error_code, "error_message": report.error_message}
        changed = bool(report.status) and transition(
            text, report.status or "", actor=PROVIDER, **(errors if report.error_code else {})
        )
        if changed and text.status in (Text.Status.UNDELIVERED, Text.Status.FAILED):
            report_failure(text)
    if changed:
        notify_handler(text)
    return text


def receive_text(number: OutboundNumber, webhook: IncomingWebhook) -> Text:
    """Store a text sent to `number`, once, and process it.

    It is STOP, START, HELP, or an answer to an outbound text. Raises WrongCall.
    """
    if not webhook.sid or webhook.account_sid != number.account.account_sid or webhook.to != str(number.phone):
        raise WrongCall
    with transaction.atomic():
        text, is_new = Text.objects.get_or_create(
            account_id=number.account_id,
            sid=webhook.sid,
            defaults={
                "organization_id": number.organization_id,
                "direction": Text.Direction.IN,
                "number": number,
                "to_phone": webhook.to,
                "from_phone": webhook.from_,
                "body": webhook.body,
                "status": Text.Status.RECEIVED,
                "not_after": clock.now(),
                "ended_at": clock.now(),
            },
        )
        if text.direction != Text.Direction.IN or text.number_id != number.pk:
            raise WrongCall
        if is_new:
            append_text_event(text, "received", PROVIDER)
            metrics.texts_received.inc()
    fault_injection.crash_point("telephony.text.received")
    return process_text(text.pk)


def process_text(text_id: int) -> Text:
    """Process a received text at least once; an already processed text is left unchanged.

    The handler runs before the text is marked as processed: if the process dies in between, the handler runs
    again.
    """
    text = Text.objects.select_related("organization", "number").get(pk=text_id)
    if text.handled_at is not None:
        return text
    purpose, answer = _answer_to(text)
    with transaction.atomic():
        text = lock_text(text_id, "organization", "number")
        if text.handled_at is not None:
            return text
        update_fields(text, handled_at=clock.now(), purpose=purpose)
        if answer:
            _reply(text, answer)
    return text


def _answer_to(text: Text) -> tuple[str, str]:
    """Return (purpose that handled the text, reply). The provider confirms STOP and START itself."""
    organization_id, phone = text.organization_id, text.from_phone
    keyword = sms_rules.keyword(text.body, is_opted_out(organization_id, phone))
    if keyword in ("stop", "start") and _is_superseded(text):
        return "", ""
    match keyword:
        case "stop":
            sms.opt_out(organization_id, phone, source=OptOut.Source.STOP, actor=PROVIDER)
            for _, listener in inbound_handlers():
                listener.on_stop(text)
            return "", ""
        case "start":
            sms.opt_in(organization_id, phone, actor=PROVIDER)
            return "", ""
        case "help":
            for purpose, listener in inbound_handlers(_last_purpose(organization_id, phone)):
                if (answer := listener.on_help(text)) is not None:
                    return purpose, answer
            with languages.override(text.organization.language):
                about = gettext("{organization}: we text about our services. Reply STOP to opt out.")
            return "", about.format(organization=text.organization.name)
    for purpose, listener in inbound_handlers(_last_purpose(organization_id, phone)):
        if (answer := listener.on_sms(text)) is not None:
            return purpose, answer
    return "", ""


def _is_superseded(text: Text) -> bool:
    """Return whether a newer STOP or START has arrived while this text waited."""
    later = Text.objects.filter(
        organization_id=text.organization_id,
        direction=Text.Direction.IN,
        from_phone=text.from_phone,
        pk__gt=text.pk,
    )
    bodies = later.values_list("body", flat=True)[:50]
    return any(sms_rules.keyword(body, opted_out=True) in ("stop", "start") for body in bodies)


def _reply(text: Text, answer: str) -> None:
    """Reply to a text, up to a limit per hour, because the sender may be a machine."""
    hour_ago = clock.now() - timedelta(hours=1)
    replies = Text.objects.filter(
        organization_id=text.organization_id, purpose="reply", to_phone=text.from_phone, created_at__gt=hour_ago
    )
    if replies.count() >= settings.TEXT_REPLIES_PER_HOUR:
        append_text_event(text, "not_answered", why="too many replies within an hour")
        return
    try:
        create_text(
            organization=text.organization,
            to_phone=text.from_phone,
            body=answer,
            purpose=Text.Purpose.REPLY,
            subject_id=text.pk,
            number=text.number,
        )
    except (TextNotAllowed, NoTextNumber) as error:
        append_text_event(text, "not_answered", why=str(error))


def process_unprocessed_texts() -> int:
    """Process received texts whose webhook did not finish. Return how many."""
    limit = clock.now() - TAKE_OVER_AFTER
    left = Text.objects.filter(direction=Text.Direction.IN, handled_at=None, created_at__lt=limit).order_by("id")
    return run_unlocked(_process_one, left, BATCH, event="received_text_failed", skipped=_failed_texts)


def _process_one(text_id: int) -> int:
    process_text(text_id)
    return 1


def _last_purpose(organization_id: int, phone: str) -> str:
    """Return the purpose of the last text or call to that phone."""
    ours = {"organization_id": organization_id, "to_phone": phone}
    texts = Text.objects.filter(**ours, direction=Text.Direction.OUT).exclude(purpose="reply")
    text = texts.order_by("-id").first()
    call = Call.objects.filter(**ours).order_by("-created_at").first()
    last = max((item for item in (text, call) if item), key=lambda item: item.created_at, default=None)
    return last.purpose if last else ""


# --- calls ------------------------------------------------------------------------------------------------------


def answer_call(number: OutboundNumber, webhook: IncomingWebhook) -> tuple[InboundCall, VoicePrompt]:
    """Store an inbound call to `number`, once, and return it with its prompt. Raises WrongCall."""
    call = _store_call(number, webhook)
    for purpose, listener in inbound_handlers(
        call.purpose or _last_purpose(call.organization_id, call.from_phone)
    ):
        prompt = listener.on_call(call)
        if prompt is not None:
            InboundCall.objects.filter(pk=call.pk).update(purpose=purpose, subject_id=call.subject_id)
            call.purpose = purpose
            return call, prompt
    with speaking(speech_for(call.organization)):
        hello = gettext("Hello. This is {organization}.").format(organization=call.organization.name)
        return call, VoicePrompt((hello, gettext("We have nothing waiting for you."), gettext("Goodbye.")))


def handle_key(
    call_id: int,
    number: OutboundNumber,
    webhook: IncomingWebhook,
    keys: str,
    digits: int = 1,
    state: str = "",
    step: int = 0,
) -> tuple[InboundCall, VoicePrompt]:
    """Pass a pressed key to the handler of an inbound call, if it is one of `keys` of the last prompt.

    If `digits` is greater than 1, the prompt asked for a number of up to `digits` digits. It is passed to the
    handler, but not stored. `state` is the prompt's; the handler of a prompt with a state also learns of other
    keys. `step` numbers the prompts of a call: the provider may deliver the answer to one repeatedly. The handler
    then returns the result again, but the answer counts once, as of its first arrival. Raises WrongCall.
    """
    call = _store_call(number, webhook)
    if call.pk != call_id:
        raise WrongCall
    listener = dict(inbound_handlers()).get(call.purpose)
    if listener is not None and digits > 1 and webhook.keys.isdecimal() and len(webhook.keys) <= digits:
        _, is_repeated = _record_answer(call.pk, f"{step}:digits:{state}")
        fault_injection.crash_point("telephony.inbound_digits.recorded")
        return call, listener.on_digits(call, webhook.keys, state=state, is_repeated=is_repeated)
    if listener is None or len(webhook.keys) != 1 or webhook.keys not in keys:
        if listener is not None and state:
            return call, listener.on_key(call, "", arrived_at=clock.now(), state=state)
        return answer_call(number, webhook)
    arrived_at, _ = _record_answer(call.pk, f"{step}:{webhook.keys}:{state}", webhook.keys, state)
    pressed = PressedKey(webhook.keys, arrived_at)
    fault_injection.crash_point("telephony.inbound_key.recorded")
    prompt = listener.on_key(call, pressed.key, arrived_at=pressed.at, state=state)
    finish_key(call.pk, pressed)
    return call, prompt


@transaction.atomic
def _record_answer(call_id: int, identity: str, key: str = "", state: str = "") -> tuple[datetime, bool]:
    """Record the answer to a prompt, once, with its key (empty: a number, which may be a PIN and is not stored).

    Return the time of its first arrival, and whether it had been recorded before.
    """
    now = clock.now()
    row = InboundCall.objects.select_for_update(no_key=True).get(pk=call_id)
    if (at := dict(row.answered_prompts).get(identity)) is not None:
        return datetime.fromisoformat(at), True
    row.answered_prompts = [*row.answered_prompts, [identity, now.isoformat()]][-REMEMBERED_ANSWERS:]
    if key:
        row.keys_pressed = (row.keys_pressed + key)[-64:]
        row.pending_keys = [*row.pending_keys, [key, now.isoformat(), *([state] if state else [])]]
        row.next_action_at = row.next_action_at or now + TAKE_OVER_KEY_AFTER
    row.save(update_fields=["answered_prompts", "keys_pressed", "pending_keys", "next_action_at"])
    return now, False


def apply_unhandled_inbound_keys() -> int:
    """Apply the recorded keys of inbound calls whose webhook did not. Return how many calls had some."""
    due = InboundCall.objects.filter(next_action_at__lte=clock.now()).exclude(pk__in=_failed_calls.keys())
    with prepared.index_plans():
        call_ids = list(due.order_by("next_action_at").values_list("pk", flat=True)[:BATCH])
    with lock_waits.limit_lock_waits(lock_waits.LOOP_S):
        run_each(_apply_keys, call_ids, event="inbound_key_not_acted_on", rule=FailureRule[int](_failed_calls.add))
    return len(call_ids)


def _apply_keys(call_id: int) -> int:
    now = clock.now()
    claimed = InboundCall.objects.filter(pk=call_id, next_action_at__lte=now)
    if not claimed.update(next_action_at=now + RETRY_AFTER):
        return 0
    call = InboundCall.objects.select_related("organization").get(pk=call_id)
    listener = dict(inbound_handlers()).get(call.purpose)
    for key, at, *state in list(call.pending_keys):
        pressed = PressedKey(key, datetime.fromisoformat(at))
        if pressed.at < now - GIVE_UP_AFTER or listener is None:
            log.error("inbound_key_given_up", inbound_call=call.pk, purpose=call.purpose)
        else:
            listener.on_key(call, key, arrived_at=pressed.at, state="".join(state))
            fault_injection.crash_point("telephony.inbound_key.acted_on")
        finish_key(call_id, pressed)
    return 1


@transaction.atomic
def finish_key(call_id: int, pressed: PressedKey) -> None:
    """Record that the handler has applied the key."""
    row = InboundCall.objects.select_for_update(no_key=True).get(pk=call_id)
    row.pending_keys = [
        pending for pending in row.pending_keys if pending[:2] != [pressed.key, pressed.at.isoformat()]
    ]
    row.next_action_at = row.next_action_at if row.pending_keys else None
    row.save(update_fields=["pending_keys", "next_action_at"])


def end_call(number: OutboundNumber, webhook: IncomingWebhook) -> None:
    """Record the end of an inbound call. Raises WrongCall."""
    call = _store_call(number, webhook)
    if not webhook.ended:
        return
    open_call = InboundCall.objects.filter(pk=call.pk, ended_at=None)
    with transaction.atomic():
        if open_call.update(
            status=InboundCall.Status.COMPLETED, ended_at=clock.now(), duration_s=webhook.duration_s
        ):
            events.append(
                call.organization_id, "inboundcall.completed", call.pk, actor=PROVIDER, purpose=call.purpose
            )


def end_unreported_calls() -> int:
    """End inbound calls whose end was not reported within a day, a batch at a time. Return how many."""
    unreported = InboundCall.objects.filter(ended_at=None, created_at__lt=clock.now() - MAX_CALL_DURATION)
    with transaction.atomic():
        calls = list(unreported.order_by("id").select_for_update(skip_locked=True, no_key=True)[:BATCH])
        ended = InboundCall.objects.filter(pk__in=[call.pk for call in calls])
        ended.update(status=InboundCall.Status.COMPLETED, ended_at=clock.now())
        for call in calls:
            events.append(call.organization_id, "inboundcall.completed", call.pk, purpose=call.purpose)
    return len(calls)


def _store_call(number: OutboundNumber, webhook: IncomingWebhook) -> InboundCall:
    if not webhook.sid or webhook.account_sid != number.account.account_sid or webhook.to != str(number.phone):
        raise WrongCall
    with transaction.atomic():
        call, is_new = InboundCall.objects.select_related("organization").get_or_create(
            account_id=number.account_id,
            sid=webhook.sid,
            defaults={
                "organization_id": number.organization_id,
                "number": number,
                "from_phone": webhook.from_,
                "attestation": webhook.attestation,
            },
        )
        if call.number_id != number.pk:
            raise WrongCall
        if is_new:
            events.append(call.organization_id, "inboundcall.answered", call.pk, actor=PROVIDER)
    return call
