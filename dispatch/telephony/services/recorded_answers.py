"""Apply answers that were stored and that their webhooks have not applied yet: texts, and keys of inbound calls.

Decisions that no later answer may undo call this first. Otherwise, a loop applies the answers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import datetime

import structlog

from dispatch.core import clock
from dispatch.telephony.handlers import inbound_handlers
from dispatch.telephony.models import InboundCall, Text
from dispatch.telephony.services import inbound
from dispatch.telephony.services.keys import GIVE_UP_AFTER, PressedKey

log = structlog.get_logger(__name__)


def apply_texts_from(
    organization_id: int,
    phones: Collection[str],
    is_answer: Callable[[str], bool],
    *,
    before: datetime | None = None,
) -> None:
    """Process the stored texts from these phones whose body is an answer, oldest first.

    `before`: only texts that arrived earlier. A text that fails is left to the loop.
    """
    waiting = Text.objects.filter(
        organization_id=organization_id,
        direction=Text.Direction.IN,
        handled_at=None,
        from_phone__in=phones,
        created_at__gt=clock.now() - GIVE_UP_AFTER,
    )
    if before is not None:
        waiting = waiting.filter(created_at__lt=before)
    for text_id, body in list(waiting.order_by("pk").values_list("pk", "body")):
        if is_answer(body):
            try:
                inbound.process_text(text_id)
            except Exception:
                log.exception("received_text_failed", item=text_id)


def apply_inbound_keys_of(purpose: str, subject_ids: Collection[int], *, before: datetime | None = None) -> None:
    """Apply the stored keys of inbound calls about these subjects, except keys of a menu. `before` as above."""
    waiting = InboundCall.objects.filter(
        purpose=purpose, subject_id__in=subject_ids, next_action_at__isnull=False
    ).select_related("organization")
    listener = dict(inbound_handlers())[purpose]
    for call in waiting.order_by("pk"):
        for key, arrived, *state in list(call.pending_keys):
            pressed = PressedKey(key, datetime.fromisoformat(arrived))
            if state or (before is not None and pressed.at >= before):
                continue
            try:
                listener.on_key(call, key, arrived_at=pressed.at)
                inbound.finish_key(call.pk, pressed)
            except Exception:
                log.exception("inbound_key_not_acted_on", item=call.pk)
