"""Writing a text's row before anybody is asked, and its moves."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import structlog
from django.db import connection
from django.db.models import Q

from accounts.models import Organization
from dispatch.capacity.models import DispatchPool, OutboundNumber
from dispatch.core import clock, events, rows
from dispatch.core.events import SYSTEM, Actor
from dispatch.core.queues import wake
from dispatch.telephony import metrics, rules, text_rules
from dispatch.telephony.errors import NoTextNumber, OptedOut, TextNotAllowed
from dispatch.telephony.models import OptOut, Text
from dispatch.telephony.purposes import text_handler_for

log = structlog.get_logger(__name__)

TEXT_LOOP = "texts"
WORTH_SENDING = timedelta(hours=1)
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
    not_after: datetime | None = None,
    context: dict[str, Any] | None = None,
    actor: Actor = SYSTEM,
) -> Text:
    """The committed intention to send an SMS; the loop `texts` is woken by the commit and sends it.

    Must run in the caller's transaction. `to_phone` is E.164; `body` at most 1600 characters, what is longer is
    cut; `not_after` the moment after which nobody begins to send it (default: an hour from now); `context` (JSON)
    is repeated in every event of the text. It comes from `number`, else from the one that they texted last, else
    from one of `pool`, else from any of the organization: of those that may send texts. A text of the same
    (purpose, subject_id, attempt) is returned as it is.

    Raises OptedOut, TextNotAllowed, NoTextNumber; none of them spoils the transaction."""
    if not connection.in_atomic_block:
        raise RuntimeError("create_text belongs into the transaction that knows what the text is for.")
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
        body=body[: text_rules.LONGEST],
        not_before=now,
        not_after=not_after or now + WORTH_SENDING,
        created_at=now,
        context=context or {},
    )
    if not rows.insert(text, or_nothing=True):  # another wrote the same attempt at this moment
        existing = text_of(purpose, subject_id, attempt)
        assert existing is not None
        return existing
    record(text, "created", actor, number=str(sender.pk))
    wake(TEXT_LOOP)
    return text


def may_text(organization_id: int, phone: Any) -> bool:
    """Whether a text to that phone could be written now: it is not opted out, and a number may send."""
    return _sender(organization_id, str(phone), None, None) is not None and not is_opted_out(
        organization_id, phone
    )


def text_of(purpose: str, subject_id: int, attempt: int = 1) -> Text | None:
    """The text of one attempt."""
    found: Text | None = Text.objects.filter(
        direction=Text.Direction.OUT, purpose=purpose, subject_id=subject_id, attempt=attempt
    ).first()
    return found


def texts_of(purpose: str, subject_id: int) -> Any:
    """Every text of ours about the subject, the newest first."""
    out = Text.objects.filter(direction=Text.Direction.OUT, purpose=purpose, subject_id=subject_id)
    return out.order_by("-id")


def is_opted_out(organization_id: int, phone: Any) -> bool:
    return bool(OptOut.objects.filter(organization_id=organization_id, phone=str(phone)).exists())


def _sender(
    organization_id: int, phone: str, number: OutboundNumber | None, pool: DispatchPool | None
) -> OutboundNumber | None:
    usable = list(
        OutboundNumber.objects.of(organization_id)
        .filter(sends_texts=True, is_paused=False, account__is_active=True)
        .order_by("pk")
    )
    if number is not None and number in usable:
        return next(one for one in usable if one == number)
    if not usable:
        return None
    # who opted in again did so with the number that they texted: the provider keeps others closed
    theirs = Text.objects.of(organization_id).filter(from_phone=phone, direction=Text.Direction.IN)
    last = theirs.order_by("-id").values_list("number_id", flat=True).first()
    for one in usable:
        if one.pk == last:
            return one
    in_pool = [one for one in usable if pool is not None and one.pool_id == pool.pk]
    return text_rules.number_for(phone, in_pool or usable)


# --- moves ------------------------------------------------------------------------------------------------------


def locked(text_id: int, *related: str) -> Text:
    """The text, its row locked until the transaction ends. Raises Text.DoesNotExist."""
    return rows.get(Text, text_id, *related, lock=True)


def record(text: Text, verb: str, actor: Actor = SYSTEM, **data: Any) -> None:
    """Appends `text.<verb>` with what the text is for; its row must be locked or new."""
    events.append(
        text.organization_id,
        f"text.{verb}",
        text.pk,
        actor=actor,
        **{
            **text.context,
            "purpose": text.purpose,
            "subject_id": text.subject_id,
            **{name: value for name, value in data.items() if value not in (None, "")},
        },
    )


def advance(text: Text, status: str, *, actor: Actor = SYSTEM, **fields: Any) -> bool:
    """Moves a locked text forward to `status` and writes `fields`; False, and nothing, when it is there or
    further."""
    if not text_rules.is_forward(text.status, status):
        return False
    now = clock.now()
    text.status = status
    if text.submitted_at is None and text_rules.RANK[status] >= text_rules.RANK["submitted"] and text.sid:
        fields.setdefault("submitted_at", now)
    if status in text_rules.ENDS:
        fields.setdefault("ended_at", now)
    keep(text, "status", **fields)
    record(text, status, actor, code=fields.get("error_code"), message=fields.get("error_message"))
    metrics.texts_moved.labels(text.purpose, status).inc()
    return True


def keep(text: Text, *names: str, **fields: Any) -> None:
    """Writes these fields of a locked text, and those named."""
    for name, value in fields.items():
        setattr(text, name, value)
    rows.update(text, (*names, *fields))


def tell(text: Text) -> None:
    """Tells the purpose that its text changed, after commit. Its failure is logged: nothing depends on it."""
    handler = text_handler_for(text.purpose)
    if handler is None:
        return
    try:
        handler.changed(text)
    except Exception:
        log.exception("the purpose could not be told of its text", purpose=text.purpose, text=text.pk)


def cancel_texts(where: Q, *, actor: Actor = SYSTEM) -> int:
    """Cancels texts of ours that were not yet asked for; how many. In the caller's transaction."""
    waiting = Text.objects.filter(where, direction=Text.Direction.OUT, status=Status.CREATED).order_by("pk")
    return sum(
        advance(locked(pk), Status.CANCELED, actor=actor) for pk in list(waiting.values_list("pk", flat=True))
    )
