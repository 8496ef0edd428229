"""Apply user actions to messages: cancel, replay and, from ERROR only, retry, ignore and resolve; one or many."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from django.db import transaction

from dispatch.core import clock
from dispatch.core.api.problems import Conflict
from dispatch.core.events import Actor
from dispatch.core.languages import gettext as _
from dispatch.core.languages import mark
from dispatch.core.models import Event
from dispatch.core.runtime import queues
from dispatch.outbox import sql
from dispatch.outbox.models import Message, Mode
from dispatch.outbox.services.scheduling import lock_groups, reschedule_groups
from dispatch.outbox.services.target_health import POLLER

AT_ONCE = 500


class Action(Enum):
    """An action: (name, statuses that allow it, new status, resolution, verb, whether it resets the budget)."""

    RETRY = ("retry", ("ERROR",), "PENDING", "", "retried", True)
    RESOLVE = ("resolve", ("ERROR",), "COMPLETED", mark("resolved"), "resolved", False)
    IGNORE = ("ignore", ("ERROR",), "CANCELLED", mark("ignored"), "ignored", False)
    CANCEL = ("cancel", ("PENDING", "QUEUED", "PROCESSING"), "CANCELLED", "", "canceled", False)
    # A replayed message keeps its id, its place in its group and its history: it goes before all later messages.
    REPLAY = ("replay", ("COMPLETED", "CANCELLED", "EXPIRED"), "PENDING", "", "replayed", True)

    def __init__(
        self, word: str, before: tuple[str, ...], after: str, resolution: str, verb: str, is_fresh: bool
    ) -> None:
        self.word, self.before, self.after = word, before, after
        self.resolution, self.verb, self.is_fresh = resolution, verb, is_fresh
        # The event of CANCEL keeps the spelling in which it was always stored.
        self.event_kind = "message.cancelled" if word == "cancel" else f"message.{verb}"

    @classmethod
    def of(cls, word: str) -> Action:
        """Return the action with this name. Raises KeyError if there is none."""
        return {action.word: action for action in cls}[word]


@dataclass
class ActionResult:
    """The ids of changed messages, and the statuses of the others, which prevented the change."""

    changed: list[int] = field(default_factory=list)
    refused: dict[int, str] = field(default_factory=dict)


def act_on_messages(action: Action, message_ids: Iterable[int], *, actor: Actor, note: str = "") -> ActionResult:
    """Apply the action to all of these messages whose status allows it; their groups continue at once."""
    ids, done = list(dict.fromkeys(message_ids)), ActionResult()
    for first in range(0, len(ids), AT_ONCE):
        _act([action], ids[first : first + AT_ONCE], actor, note, done)
    return done


def send_again(message_ids: Iterable[int], *, actor: Actor) -> ActionResult:
    """Retry the messages in ERROR and replay those that have ended, together: they are sent in their order."""
    ids, done = sorted(set(message_ids)), ActionResult()
    for first in range(0, len(ids), AT_ONCE):
        _act([Action.RETRY, Action.REPLAY], ids[first : first + AT_ONCE], actor, "", done)
    return done


def act_on_one(action: Action, message: Message, *, actor: Actor, note: str = "") -> Message:
    """Apply the action to one message and return its new state.

    Raises Conflict if its status does not allow the action; the exception says who last changed it and when.
    """
    done = act_on_messages(action, [message.pk], actor=actor, note=note)
    fresh = Message.objects.get(pk=message.pk)
    if not done.changed:
        wanted = {
            Action.CANCEL: _("Only a message that has not ended can be canceled"),
            Action.REPLAY: _(
                "Only a message that has ended without an error, and whose content was not erased, can be replayed"
            ),
            Action.RETRY: _("Only an ERROR whose content was not erased can be retried"),
            Action.IGNORE: _("Only an ERROR can be ignored"),
        }.get(action, _("Only an ERROR can be resolved"))
        last = Event.objects.filter(subject_type="message", subject_id=message.pk).order_by("-id").first()
        raise Conflict(
            _("{rule}; message {number} is {status}.").format(rule=wanted, number=message.pk, status=fresh.status),
            by=Actor(last.actor_type, last.actor_id, last.actor_label) if last else None,
            did=last.kind.partition(".")[2] if last else "",
            at=last.at if last else None,
            status=fresh.status,
        )
    return fresh


def _act(wanted: Sequence[Action], ids: list[int], actor: Actor, note: str, done: ActionResult) -> None:
    """Apply to each message the action that its status allows, in one transaction."""
    now = clock.now()
    changed: list[tuple[int]] = []
    with transaction.atomic():
        rows = Message.objects.filter(pk__in=ids).exclude(mode=Mode.IMMEDIATE).values_list("group_id", flat=True)
        groups = set(rows)
        lock_groups(groups)
        before = dict(sql.fetch_all(sql.LOCK_MESSAGES, {"ids": ids}))
        for action in wanted:
            changed += sql.fetch_all(
                sql.APPLY_ACTION,
                {
                    "ids": ids, "status": action.after, "from": list(action.before),
                    "resolution": action.resolution, "fresh": action.is_fresh, "replay": action is Action.REPLAY,
                    "kind": action.event_kind, "note": note[:500], "now": now,
                    "actor_type": actor.type, "actor_id": actor.id, "actor_label": actor.label[:120],
                },
            )  # fmt: skip
        reschedule_groups(groups, now)
        queues.notify_loop(POLLER)
    changed_ids = {row[0] for row in changed}
    done.changed += [message_id for message_id in ids if message_id in changed_ids]
    done.refused |= {key: status for key, status in before.items() if key not in changed_ids}
