"""What people do with messages: cancel, and, from ERROR only, retry, ignore and resolve; one or many."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

from django.db import transaction

from dispatch.core import clock, queues
from dispatch.core.events import Actor
from dispatch.core.models import Event
from dispatch.core.problems import Conflict
from dispatch.outbox import sql
from dispatch.outbox.models import Message, Mode
from dispatch.outbox.services.claims import lock_groups, settle
from dispatch.outbox.services.targets import POLLER

AT_ONCE = 500


class Action(Enum):
    """name → (from which statuses, to which, resolution, verb, whether it begins anew)."""

    RETRY = ("retry", ("ERROR",), "PENDING", "", "retried", True)
    RESOLVE = ("resolve", ("ERROR",), "COMPLETED", "resolved", "resolved", False)
    IGNORE = ("ignore", ("ERROR",), "CANCELLED", "ignored", "ignored", False)
    CANCEL = ("cancel", ("PENDING", "QUEUED", "PROCESSING"), "CANCELLED", "", "cancelled", False)

    def __init__(
        self, word: str, before: tuple[str, ...], after: str, resolution: str, verb: str, is_fresh: bool
    ) -> None:
        self.word, self.before, self.after = word, before, after
        self.resolution, self.verb, self.is_fresh = resolution, verb, is_fresh

    @classmethod
    def of(cls, word: str) -> Action:
        """Raises KeyError."""
        return {action.word: action for action in cls}[word]


@dataclass
class Acted:
    """Ids of the messages that were changed, and the others with the status that stood against it."""

    changed: list[int] = field(default_factory=list)
    refused: dict[int, str] = field(default_factory=dict)


def act(action: Action, message_ids: Iterable[int], *, actor: Actor, note: str = "") -> Acted:
    """Does it to all of these that are in a status which allows it; their groups go on at once."""
    ids, done = list(dict.fromkeys(message_ids)), Acted()
    for first in range(0, len(ids), AT_ONCE):
        _act(action, ids[first : first + AT_ONCE], actor, note, done)
    return done


def act_on_one(action: Action, message: Message, *, actor: Actor, note: str = "") -> Message:
    """As `act`; returns the message as it is now. Raises Conflict, saying who did what when, from another
    status."""
    done = act(action, [message.pk], actor=actor, note=note)
    fresh = Message.objects.get(pk=message.pk)
    if not done.changed:
        wanted = "an ERROR" if action.before == ("ERROR",) else "a message that has not ended"
        last = Event.objects.filter(subject_type="message", subject_id=message.pk).order_by("-id").first()
        raise Conflict(
            f"Only {wanted} can be {action.verb}; message {message.pk} is {fresh.status}.",
            by=Actor(last.actor_type, last.actor_id, last.actor_label) if last else None,
            did=last.kind.partition(".")[2] if last else "",
            at=last.at if last else None,
            status=fresh.status,
        )
    return fresh


def _act(action: Action, ids: list[int], actor: Actor, note: str, done: Acted) -> None:
    now = clock.now()
    with transaction.atomic():
        rows = Message.objects.filter(pk__in=ids).exclude(mode=Mode.IMMEDIATE).values_list("group_id", flat=True)
        groups = set(rows)
        lock_groups(groups)
        before = dict(sql.rows(sql.LOCK_MESSAGES, {"ids": ids}))
        changed = sql.rows(
            sql.BY_HAND,
            {
                "ids": ids, "status": action.after, "from": list(action.before), "resolution": action.resolution,
                "fresh": action.is_fresh, "kind": f"message.{action.verb}", "note": note[:500], "now": now,
                "actor_type": actor.type, "actor_id": actor.id, "actor_label": actor.label[:120],
            },
        )  # fmt: skip
        settle(groups, now)
        queues.wake(POLLER)
    mine = {row[0] for row in changed}
    done.changed += [message_id for message_id in ids if message_id in mine]
    done.refused |= {key: status for key, status in before.items() if key not in mine}
