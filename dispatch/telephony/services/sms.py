"""Create texts before the provider is asked, move them between states, and manage opt-outs."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

import structlog
from django.db import connection, transaction
from django.db.models import Q

from accounts.models import Organization
from dispatch.capacity import account_outages
from dispatch.capacity.models import DispatchPool, OutboundNumber
from dispatch.core import clock, events
from dispatch.core.db import fast_rows
from dispatch.core.db.prepared import execute, integers, texts
from dispatch.core.events import SYSTEM, Actor, NewEvent
from dispatch.core.privacy import replay
from dispatch.core.runtime.queues import notify_loop
from dispatch.telephony import metrics, number_health, rules, sms_rules, sql
from dispatch.telephony.errors import NoTextNumber, OptedOut, TextNotAllowed
from dispatch.telephony.handlers import text_handler_for
from dispatch.telephony.models import Call, OptOut, Text
from dispatch.telephony.services.call_requests import hang_up

log = structlog.get_logger(__name__)

TEXT_LOOP = "texts"
DEFAULT_DEADLINE = timedelta(hours=1)
# The last texts of a phone to a number in which STOP or START is looked for.
REMEMBERED_TEXTS = 20
Status = Text.Status


def create_text(
    *,
    organization: Organization,
    to_phone: Any,
    body: str,
    purpose: str,
    subject_id: int,
    attempt: int = 1,
    number: OutboundNumber | None = None,
    pool: DispatchPool | None = None,
    not_before: datetime | None = None,
    not_after: datetime | None = None,
    context: dict[str, Any] | None = None,
    actor: Actor = SYSTEM,
) -> Text:
    """Create a text. The commit wakes the loop `texts`, which sends it.

    Must run in the caller's transaction. `to_phone` is E.164. `body` is truncated to 1600 UTF-16 units.
    `not_before`: when it may be sent (default: now). `not_after`: the deadline for sending (default: an hour
    later). `context` (JSON) is included in every event.
    The sender is the first that may send texts: `number`, the number that this phone texted last, one of `pool`,
    any number of the organization; numbers whose texts are blocked come last. During an outage of its account, a
    number of its pool or of the pool's fallback sends the text (`find_substitute`). An existing text of the same
    (purpose, subject_id, attempt) is returned unchanged.

    Raises OptedOut, TextNotAllowed and NoTextNumber. The transaction stays usable.
    """
    if not connection.in_atomic_block:
        raise RuntimeError("create_text must run in the transaction that creates the text's subject.")
    if existing := text_of(purpose, subject_id, attempt):
        return existing
    phone = str(to_phone)
    if reason := rules.why_not_callable(phone, organization.allowed_countries):
        raise TextNotAllowed(reason)
    if is_opted_out(organization.pk, phone):
        raise OptedOut
    sender = _sender(organization.pk, phone, number, pool)
    if sender is None:
        raise NoTextNumber("no number may send texts")
    now = clock.now()
    text = Text(
        organization_id=organization.pk,
        purpose=purpose,
        subject_id=subject_id,
        attempt=attempt,
        account_id=sender.account_id,
        number=sender,
        to_phone=phone,
        from_phone=str(sender.phone),
        body=sms_rules.truncate(body),
        not_before=not_before or now,
        not_after=not_after or (not_before or now) + DEFAULT_DEADLINE,
        created_at=now,
        context=context or {},
    )
    if not fast_rows.insert_row(text, or_nothing=True):  # a concurrent transaction wrote the same attempt
        existing = text_of(purpose, subject_id, attempt)
        assert existing is not None
        return existing
    append_text_event(text, "created", actor, number=str(sender.pk))
    notify_loop(TEXT_LOOP)
    return text


def may_text(organization_id: int, phone: Any) -> bool:
    """Return whether a text to that phone is possible now: it has not opted out, and a number may send texts."""
    return bool(textable(organization_id, [str(phone)]))


def textable(organization_id: int, phones: Iterable[str]) -> set[str]:
    """Return those of the phones to which a text is possible now (see `may_text`)."""
    phones = list(phones)
    if not phones or not _usable_senders(organization_id):
        return set()
    return set(phones) - opted_out(organization_id, phones)


def text_of(purpose: str, subject_id: int, attempt: int = 1) -> Text | None:
    """Return the text of one attempt, or None."""
    text: Text | None = Text.objects.filter(
        direction=Text.Direction.OUT, purpose=purpose, subject_id=subject_id, attempt=attempt
    ).first()
    return text


def texts_of(purpose: str, subject_id: int) -> Any:
    """Select the outbound texts about the subject, newest first."""
    out = Text.objects.filter(direction=Text.Direction.OUT, purpose=purpose, subject_id=subject_id)
    return out.order_by("-id")


def is_opted_out(organization_id: int, phone: Any) -> bool:
    """Return whether the phone has opted out of the organization's texts."""
    return str(phone) in opted_out(organization_id, [str(phone)])


def opted_out(organization_id: int, phones: Iterable[str]) -> set[str]:
    """Return those of the phones that have opted out of the organization's texts."""
    phones = list(phones)
    opt_outs = OptOut.objects.filter(organization_id=organization_id, phone__in=phones)
    found = {str(phone) for phone in opt_outs.values_list("phone", flat=True)}
    return found | replay.find_refused(organization_id, phones, replay.OPT_OUT)


def find_substitute(number: OutboundNumber, phone: str) -> OutboundNumber | None:
    """Return the number that texts the phone during an outage of the number's account, or None.

    A number to which the phone has said STOP is none: the provider blocks its texts, although the phone has opted
    in again by a text to another number.
    """
    substitutes = account_outages.substitute_senders(number)
    possible = [one for one in substitutes if not _has_stopped(one, phone)]
    return sms_rules.choose_number(phone, possible) if possible else None


def _has_stopped(number: OutboundNumber, phone: str) -> bool:
    inbound = Text.objects.of(number.organization_id).filter(
        from_phone=phone, number_id=number.pk, direction=Text.Direction.IN
    )
    bodies = inbound.order_by("-id").values_list("body", flat=True)[:REMEMBERED_TEXTS]
    words = (sms_rules.keyword(body, opted_out=True) for body in bodies)
    return next((word for word in words if word in ("stop", "start")), "") == "stop"


def _sender(
    organization_id: int, phone: str, number: OutboundNumber | None, pool: DispatchPool | None
) -> OutboundNumber | None:
    usable = _usable_senders(organization_id)
    if number is not None and number in usable:
        return next(candidate for candidate in usable if candidate == number)
    if not usable:
        return None
    chosen = _choose_unblocked(organization_id, phone, pool, usable)
    return find_substitute(chosen, phone) or chosen


def _usable_senders(organization_id: int) -> list[OutboundNumber]:
    condition = "t.organization_id = %s AND t.sends_texts AND NOT t.is_paused AND r1.is_active ORDER BY t.id"
    return fast_rows.fetch_many(OutboundNumber, condition, [organization_id], "account")


def _choose_unblocked(
    organization_id: int, phone: str, pool: DispatchPool | None, usable: list[OutboundNumber]
) -> OutboundNumber:
    left = list(usable)
    while left:
        chosen = _choose_sender(organization_id, phone, pool, left)
        if len(usable) == 1 or not number_health.text_health(chosen).is_blocked:
            return chosen
        left.remove(chosen)
    return _choose_sender(organization_id, phone, pool, usable)  # all are blocked


def _choose_sender(
    organization_id: int, phone: str, pool: DispatchPool | None, usable: list[OutboundNumber]
) -> OutboundNumber:
    # an opt-in applies only to the number that was texted: the provider still blocks the others
    theirs = Text.objects.of(organization_id).filter(from_phone=phone, direction=Text.Direction.IN)
    last = theirs.order_by("-id").values_list("number_id", flat=True).first()
    for one in usable:
        if one.pk == last:
            return one
    in_pool = [one for one in usable if pool is not None and one.pool_id == pool.pk]
    return sms_rules.choose_number(phone, in_pool or usable)


# --- status ------------------------------------------------------------------------------------------------------


def lock_text(text_id: int, *related: str) -> Text:
    """Return the text locked until the end of the transaction. Raises Text.DoesNotExist."""
    return fast_rows.fetch_by_pk(Text, text_id, *related, lock=True)


def append_text_event(text: Text, verb: str, actor: Actor = SYSTEM, **data: Any) -> None:
    """Append `text.<verb>` with the text's subject. The row must be locked or new."""
    event = _event_of(text, verb, actor, **data)
    events.append(event.organization_id, event.kind, text.pk, actor=actor, **event.data)


def _event_of(text: Text, verb: str, actor: Actor, **data: Any) -> NewEvent:
    subject = {"purpose": text.purpose, "subject_id": text.subject_id}
    details = {name: value for name, value in data.items() if value not in (None, "")}
    return NewEvent(text.organization_id, f"text.{verb}", actor, {**text.context, **subject, **details})


def transition(text: Text, status: str, *, actor: Actor = SYSTEM, **fields: Any) -> bool:
    """Move a locked text forward to `status`, and write `fields`.

    Returns False, and changes nothing, if the text already has that status or a later one.
    """
    if not sms_rules.is_forward(text.status, status):
        return False
    now = clock.now()
    text.status = status
    if text.submitted_at is None and sms_rules.RANK[status] >= sms_rules.RANK["submitted"] and text.sid:
        fields.setdefault("submitted_at", now)
    if status in sms_rules.ENDS:
        fields.setdefault("ended_at", now)
    details = {"code": fields.get("error_code"), "message": fields.get("error_message")}
    _write_fields(text, ("status",), fields, _event_of(text, status, actor, **details))
    metrics.texts_moved.labels(text.purpose, status).inc()
    return True


def update_fields(text: Text, *names: str, **fields: Any) -> None:
    """Write `fields` and the named fields of a locked text."""
    _write_fields(text, names, fields)


def _write_fields(text: Text, names: tuple[str, ...], fields: dict[str, Any], *new_events: NewEvent) -> None:
    for name, value in fields.items():
        setattr(text, name, value)
    fast_rows.update_row(text, (*names, *fields), *new_events)


def notify_handler(text: Text) -> None:
    """Notify the purpose's handler, after the commit, that the text has changed.

    A failure is only logged, because no state depends on the notification.
    """
    handler = text_handler_for(text.purpose)
    if handler is None:
        return
    try:
        handler.on_status_change(text)
    except Exception:
        log.exception("text_handler_failed", purpose=text.purpose, text=text.pk)


def cancel_texts(where: Q, *, actor: Actor = SYSTEM) -> int:
    """Cancel outbound texts that are not requested yet, in the caller's transaction. Return how many."""
    waiting = Text.objects.filter(where, direction=Text.Direction.OUT, status=Status.CREATED).order_by("pk")
    locked = (lock_text(pk) for pk in list(waiting.values_list("pk", flat=True)))
    # a text that was claimed while we waited for its lock is sent
    return sum(text.status == Status.CREATED and transition(text, Status.CANCELED, actor=actor) for text in locked)


# Calls of these purposes are unsolicited and stop after an opt-out.
UNSOLICITED = ("lead",)


def lock_phone(organization_ids: Iterable[int], phone: str) -> None:
    """Lock the decisions of these organizations to call the phone until the end of the transaction.

    Waits for decisions in progress.
    """
    ids = list(organization_ids)
    execute(sql.LOCK_PHONES, {"organizations": integers(ids), "phones": texts([phone] * len(ids))})


def hang_up_unanswered(
    organization_ids: Iterable[int], phone: str, *, actor: Actor = SYSTEM, but: int = 0
) -> None:
    """Hang up unsolicited, unanswered calls to the phone, except the call `but`.

    Must run in a transaction that holds `lock_phone`.
    """
    unanswered = Call.objects.filter(
        organization_id__in=list(organization_ids),
        to_phone=phone,
        purpose__in=UNSOLICITED,
        ended_at=None,
        answered_at=None,
    )
    for call_id in unanswered.exclude(pk=but).order_by("pk").values_list("pk", flat=True):
        hang_up(call_id, actor=actor, reason="the person opted out of calls")


def opt_out(
    organization_id: int,
    phone: Any,
    *,
    source: OptOut.Source = OptOut.Source.HAND,
    actor: Actor = SYSTEM,
    but: int = 0,
) -> bool:
    """Opt the phone out of texts, and cancel its waiting texts. Return False if it was already opted out.

    A STOP, or the provider's report, becomes the source of an opt-out that was entered manually. Also hangs up
    unsolicited, unanswered calls to it, except the call `but`.
    """
    phone = str(phone)
    with transaction.atomic():
        lock_phone([organization_id], phone)
        row, is_new = OptOut.objects.get_or_create(
            organization_id=organization_id, phone=phone, defaults={"source": source}
        )
        if is_new:
            events.append(organization_id, "optout.added", row.pk, actor=actor, source=str(source))
            replay.record(organization_id, replay.OPT_OUT, phone)
            cancel_texts(Q(organization_id=organization_id, to_phone=phone), actor=actor)
        elif row.source == OptOut.Source.HAND and source != row.source:
            events.append(organization_id, "optout.changed", row.pk, actor=actor, source=str(source))
            row.source = source
            row.save(update_fields=["source"])
        hang_up_unanswered([organization_id], phone, actor=actor, but=but)
    return is_new


def opt_in(
    organization_id: int,
    phone: Any,
    *,
    actor: Actor = SYSTEM,
    source: OptOut.Source | None = None,
    since: datetime | None = None,
) -> bool:
    """Opt the phone in to texts again. Return False if it was not opted out.

    `source`: only if the opt-out came from there. `since`: only if it is not older.
    """
    with transaction.atomic():
        rows = OptOut.objects.select_for_update(no_key=True).filter(
            organization_id=organization_id, phone=str(phone)
        )
        row = rows.first()
        if row is None or source not in (None, row.source) or (since is not None and row.created_at < since):
            return False
        events.append(organization_id, "optout.removed", row.pk, actor=actor)
        replay.record(organization_id, replay.OPT_IN, str(phone))
        row.delete()
    return True
