"""Process keys pressed in calls: store them on arrival, then apply them through the call's handler.

Each key is applied at least once. The webhook that stores a key also applies it; a loop applies keys that their
webhook did not apply. The same holds for what a voice agent leaves at its end.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import NamedTuple

import structlog

from dispatch.core import clock, fault_injection
from dispatch.core.db import fast_rows, lock_waits, prepared
from dispatch.core.db.isolation import FailureRule, run_each
from dispatch.core.db.lock_waits import RecentlyBlocked
from dispatch.telephony import providers
from dispatch.telephony.handlers import handler_for
from dispatch.telephony.models import CallEvent
from dispatch.telephony.providers.base import WebhookEvent
from dispatch.telephony.services import agents

log = structlog.get_logger(__name__)

BATCH = 100
GATHER = "gather"
# Time until the loop takes over from the webhook, until it tries again, and until it gives up.
TAKE_OVER_AFTER = timedelta(seconds=5)
RETRY_AFTER = timedelta(seconds=20)
GIVE_UP_AFTER = timedelta(hours=1)
# With the condition on the calls, whose index leads to few events.
_KEYS_OF = """
r1.purpose = %s AND r1.subject_id = %s AND r1.keys_pressed <> '' AND t.kind = 'gather' ORDER BY t.at, t.id
"""
_WAITING_KEYS = """
r1.purpose = %s AND r1.subject_id = ANY(%s::bigint[]) AND r1.keys_pressed <> '' AND t.next_action_at IS NOT NULL
AND t.at < COALESCE(%s::timestamptz, 'infinity') ORDER BY t.at, t.id
"""
_WAITING = """
SELECT DISTINCT c.subject_id FROM telephony_call c JOIN telephony_callevent e ON e.call_id = c.id
WHERE c.purpose = %(purpose)s AND c.subject_id = ANY(%(ids)s::bigint[]) AND c.keys_pressed <> ''
  AND e.next_action_at IS NOT NULL
"""
_CLEAR_NEXT_ACTION = "UPDATE telephony_callevent SET next_action_at = NULL WHERE next_action_at IS NOT NULL"
_blocked = RecentlyBlocked(20.0)


class PressedKey(NamedTuple):
    """One key and its time of arrival. `is_applied`: a handler has already applied it."""

    key: str
    at: datetime
    is_applied: bool = False


def take_over_at(event: WebhookEvent, arrived_at: datetime) -> datetime | None:
    """Return when the loop applies the key or agent's end of this webhook, or None for any other webhook."""
    is_applied = event.kind == agents.AGENT or (event.kind == GATHER and len(event.digits) == 1)
    return arrived_at + TAKE_OVER_AFTER if is_applied else None


def keys_of(purpose: str, subject_id: int) -> list[PressedKey]:
    """Return the keys pressed in the calls of this subject, in the order of their arrival."""
    stored = fast_rows.fetch_many(CallEvent, _KEYS_OF, [purpose, subject_id], "call", "call__account")
    return [PressedKey(key, event.at, event.next_action_at is None) for event in stored if (key := _key_in(event))]


def apply_keys_of(purpose: str, subject_ids: Iterable[int], *, before: datetime | None = None) -> None:
    """Apply the stored keys of these subjects that their webhooks have not applied yet, oldest first.

    For decisions that no later key may undo. `before`: only keys that arrived earlier. A key that fails is left to
    the loop.
    """
    values = [purpose, prepared.integers(subject_ids), before]
    for event in fast_rows.fetch_many(CallEvent, _WAITING_KEYS, values, "call"):
        try:
            _apply(event)
        except Exception:
            log.exception("key_not_acted_on", item=event.pk)


def find_waiting(purpose: str, subject_ids: Iterable[int]) -> set[int]:
    """Return those of these subjects with stored keys that no handler has applied yet."""
    values = {"purpose": purpose, "ids": prepared.integers(subject_ids)}
    return {subject_id for (subject_id,) in prepared.fetch_all(_WAITING, values)}


def mark_applied(call_id: int, event: WebhookEvent) -> None:
    """Record that the handler has applied the key or the agent's end of this webhook."""
    if event.kind in (GATHER, agents.AGENT):
        _clear_next_action(call_id=call_id, key=event.key)


def apply_unhandled_keys() -> int:
    """Apply the stored keys that are due. Return how many."""
    due = CallEvent.objects.filter(next_action_at__lte=clock.now()).exclude(pk__in=_blocked.keys())
    with prepared.index_plans():
        ids = list(due.order_by("next_action_at").values_list("pk", flat=True)[:BATCH])
    with lock_waits.limit_lock_waits(lock_waits.LOOP_S):
        run_each(_apply_key, ids, event="key_not_acted_on", rule=FailureRule[int](_blocked.add))
    return len(ids)


def _apply_key(event_id: int) -> int:
    now = clock.now()
    claimed = CallEvent.objects.filter(pk=event_id, next_action_at__lte=now)
    with lock_waits.limited_transaction():
        if not claimed.update(next_action_at=now + RETRY_AFTER):
            return 0
    # Without the account, whose credentials may not be readable.
    event = CallEvent.objects.select_related("call").get(pk=event_id)
    if event.at < now - GIVE_UP_AFTER:
        log.error("key_given_up", call=event.call_id, purpose=event.call.purpose)
        _clear_next_action(id=event_id)
    else:
        _apply(event)
    return 1


def _apply(event: CallEvent) -> None:
    if event.kind == agents.AGENT:
        agents.apply_stored_end(event)
    elif key := _key_in(event):
        handler_for(event.call.purpose).on_key(event.call, key)
        fault_injection.crash_point("telephony.key.acted_on")
    _clear_next_action(id=event.pk)


def _clear_next_action(**filters: object) -> None:
    """Record that the stored keys with these values in their columns are applied."""
    names = " AND ".join(f"{name} = %s" for name in filters)
    prepared.execute(f"{_CLEAR_NEXT_ACTION} AND {names}", list(filters.values()))


def _key_in(event: CallEvent) -> str:
    try:
        provider = providers.for_account(event.call.account)
    except providers.UnknownProvider:
        return ""
    return provider.parse(GATHER, 0, event.payload).digits
