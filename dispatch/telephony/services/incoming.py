"""Texts and calls that come to our numbers, and what the provider says about our texts."""

from __future__ import annotations

from datetime import timedelta

import structlog
from django.conf import settings
from django.db import transaction

from dispatch.capacity.models import OutboundNumber
from dispatch.core import clock, events, faults
from dispatch.telephony import metrics, text_rules
from dispatch.telephony.errors import NoTextNumber, NotTheirs, TextNotAllowed
from dispatch.telephony.models import Call, InboundCall, OptOut, Text
from dispatch.telephony.providers.base import Incoming, TextReport
from dispatch.telephony.purposes import Prompt, listeners
from dispatch.telephony.services import opting
from dispatch.telephony.services.moving import PROVIDER
from dispatch.telephony.services.texting import advance, create_text, is_opted_out, keep, locked, record, tell

log = structlog.get_logger(__name__)

# A text that the webhook stored and did not come to deal with is dealt with by the loop.
LEFT_BEHIND = timedelta(seconds=20)
LONGEST_CALL = timedelta(days=1)
BATCH = 100


def report_text(text_id: int, report: TextReport) -> Text:
    """Moves a text of ours by a verified webhook; a repeated one changes nothing. The first also settles which
    text at the provider is ours. Raises NotTheirs, Text.DoesNotExist."""
    with transaction.atomic():
        text = locked(text_id, "account")
        if (
            text.direction != Text.Direction.OUT
            or not report.sid
            or report.account_sid != text.account.account_sid
        ):
            raise NotTheirs
        if text.sid is None:
            if Text.objects.filter(account_id=text.account_id, sid=report.sid).exists():
                raise NotTheirs
            keep(text, sid=report.sid)
        elif text.sid != report.sid:
            raise NotTheirs
        errors = {"error_code": report.error_code, "error_message": report.error_message}
        changed = bool(report.status) and advance(
            text, report.status or "", actor=PROVIDER, **(errors if report.error_code else {})
        )
    if changed:
        tell(text)
    return text


def receive_text(number: OutboundNumber, said: Incoming) -> Text:
    """Stores a text that somebody sent to `number`, once, and deals with it: STOP, START, HELP, or an answer to
    what we sent. Raises NotTheirs."""
    if not said.sid or said.account_sid != number.account.account_sid or said.to != str(number.phone):
        raise NotTheirs
    with transaction.atomic():
        text, is_new = Text.objects.get_or_create(
            account_id=number.account_id,
            sid=said.sid,
            defaults={
                "organization_id": number.organization_id,
                "direction": Text.Direction.IN,
                "number": number,
                "to_phone": said.to,
                "from_phone": said.from_,
                "body": said.body,
                "status": Text.Status.RECEIVED,
                "not_after": clock.now(),
                "ended_at": clock.now(),
            },
        )
        if text.direction != Text.Direction.IN or text.number_id != number.pk:
            raise NotTheirs
        if is_new:
            record(text, "received", PROVIDER)
            metrics.texts_received.inc()
    faults.point("telephony.text.received")
    return deal_with(text.pk)


def deal_with(text_id: int) -> Text:
    """What a received text asks for; nothing when it was dealt with. Whoever is asked has taken the answer before
    the text counts as dealt with, so that a process that dies between makes it be asked again."""
    text = Text.objects.select_related("organization", "number").get(pk=text_id)
    if text.handled_at is not None:
        return text
    purpose, answer = _answer_to(text)
    with transaction.atomic():
        text = locked(text_id, "organization", "number")
        if text.handled_at is not None:
            return text
        keep(text, handled_at=clock.now(), purpose=purpose)
        if answer:
            _reply(text, answer)
    return text


def _answer_to(text: Text) -> tuple[str, str]:
    """(who dealt with it, what to answer). The provider itself confirms STOP and START."""
    organization_id, phone = text.organization_id, text.from_phone
    keyword = text_rules.keyword(text.body, is_opted_out(organization_id, phone))
    if keyword in ("stop", "start") and _changed_their_mind(text):
        return "", ""
    match keyword:
        case "stop":
            opting.opt_out(organization_id, phone, source=OptOut.Source.STOP, actor=PROVIDER)
            return "", ""
        case "start":
            opting.opt_in(organization_id, phone, actor=PROVIDER)
            return "", ""
        case "help":
            for purpose, listener in listeners(_last_purpose(organization_id, phone)):
                if (answer := listener.helped(text)) is not None:
                    return purpose, answer
            return "", f"{text.organization.name}: we text about service jobs. Reply STOP to get no more texts."
    for purpose, listener in listeners(_last_purpose(organization_id, phone)):
        if (answer := listener.replied(text)) is not None:
            return purpose, answer
    return "", ""


def _changed_their_mind(text: Text) -> bool:
    """Whether a STOP or START came after this one, which is dealt with late."""
    later = Text.objects.filter(
        organization_id=text.organization_id,
        direction=Text.Direction.IN,
        from_phone=text.from_phone,
        pk__gt=text.pk,
    )
    bodies = later.values_list("body", flat=True)[:50]
    return any(text_rules.keyword(body, opted_out=True) in ("stop", "start") for body in bodies)


def _reply(text: Text, answer: str) -> None:
    """Answers a text by a text; not for ever, should a machine be at the other end."""
    hour_ago = clock.now() - timedelta(hours=1)
    said = Text.objects.filter(
        organization_id=text.organization_id, purpose="reply", to_phone=text.from_phone, created_at__gt=hour_ago
    )
    if said.count() >= settings.TEXT_REPLIES_PER_HOUR:
        record(text, "not_answered", why="too many replies within an hour")
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
        record(text, "not_answered", why=str(error))


def deal_with_left_behind() -> int:
    """Received texts whose webhook did not come to its end; how many."""
    limit = clock.now() - LEFT_BEHIND
    left = Text.objects.filter(direction=Text.Direction.IN, handled_at=None, created_at__lt=limit).order_by("id")
    found = list(left.values_list("pk", flat=True)[:BATCH])
    for text_id in found:
        try:
            deal_with(text_id)
        except Exception:  # one text's trouble must not hold up the others
            log.exception("a received text could not be dealt with", text=text_id)
    return len(found)


def _last_purpose(organization_id: int, phone: str) -> str:
    """What the last text or call to that phone was about."""
    ours = {"organization_id": organization_id, "to_phone": phone}
    texts = Text.objects.filter(**ours, direction=Text.Direction.OUT).exclude(purpose="reply")
    text = texts.order_by("-id").first()
    call = Call.objects.filter(**ours).order_by("-created_at").first()
    last = max((one for one in (text, call) if one), key=lambda one: one.created_at, default=None)
    return last.purpose if last else ""


# --- calls ------------------------------------------------------------------------------------------------------


def answer_call(number: OutboundNumber, said: Incoming) -> tuple[InboundCall, Prompt]:
    """Somebody calls `number`: the call's row, written once, and what they hear. Raises NotTheirs."""
    call = _inbound(number, said)
    for purpose, listener in listeners(call.purpose or _last_purpose(call.organization_id, call.from_phone)):
        prompt = listener.called(call)
        if prompt is not None:
            InboundCall.objects.filter(pk=call.pk).update(purpose=purpose, subject_id=call.subject_id)
            call.purpose = purpose
            return call, prompt
    name = call.organization.name
    return call, Prompt((f"Hello. This is {name}.", "There is nothing waiting for your answer.", "Goodbye."))


def press_in_call(call_id: int, number: OutboundNumber, said: Incoming, keys: str) -> tuple[InboundCall, Prompt]:
    """They pressed a key: one of `keys`, which the last prompt asked for, goes to who answered the call. Raises
    NotTheirs."""
    call = _inbound(number, said)
    if call.pk != call_id:
        raise NotTheirs
    listener = dict(listeners()).get(call.purpose)
    if listener is None or len(said.keys) != 1 or said.keys not in keys:
        return answer_call(number, said)
    with transaction.atomic():
        row = InboundCall.objects.select_for_update(no_key=True).get(pk=call.pk)
        row.keys_pressed = (row.keys_pressed + said.keys)[-64:]
        row.save(update_fields=["keys_pressed"])
    return call, listener.pressed(call, said.keys)


def end_call(number: OutboundNumber, said: Incoming) -> None:
    """The provider says that the call is over. Raises NotTheirs."""
    call = _inbound(number, said)
    if not said.ended:
        return
    open_call = InboundCall.objects.filter(pk=call.pk, ended_at=None)
    with transaction.atomic():
        if open_call.update(status=InboundCall.Status.COMPLETED, ended_at=clock.now(), duration_s=said.duration_s):
            events.append(
                call.organization_id, "inboundcall.completed", call.pk, actor=PROVIDER, purpose=call.purpose
            )


def end_forgotten_calls() -> int:
    """Calls to our numbers of whose end nobody told us within a day; how many."""
    forgotten = InboundCall.objects.filter(ended_at=None, created_at__lt=clock.now() - LONGEST_CALL)
    return forgotten.update(status=InboundCall.Status.COMPLETED, ended_at=clock.now())


def _inbound(number: OutboundNumber, said: Incoming) -> InboundCall:
    if not said.sid or said.account_sid != number.account.account_sid or said.to != str(number.phone):
        raise NotTheirs
    with transaction.atomic():
        call, is_new = InboundCall.objects.select_related("organization").get_or_create(
            account_id=number.account_id,
            sid=said.sid,
            defaults={
                "organization_id": number.organization_id,
                "number": number,
                "from_phone": said.from_,
            },
        )
        if call.number_id != number.pk:
            raise NotTheirs
        if is_new:
            events.append(call.organization_id, "inboundcall.answered", call.pk, actor=PROVIDER)
    return call
