"""What may be done to a job in which status, and what it becomes: one table."""

from collections.abc import Mapping
from enum import StrEnum


class Action(StrEnum):
    """What persons (and, for the last two, the cascade) do to a job."""

    ASSIGN = "assign"
    DISPATCH_AGAIN = "dispatch_again"
    CALL_NEXT = "call_next"
    EXTEND = "extend"
    PAUSE = "pause"
    RESUME = "resume"
    CANNOT_MAKE_IT = "cannot_make_it"
    CANCEL = "cancel"
    COMPLETE = "complete"
    ACCEPT = "accept"
    GIVE_UP = "give_up"


LEGAL: Mapping[tuple[str, Action], str] = {
    ("dispatching", Action.ACCEPT): "assigned",
    ("dispatching", Action.GIVE_UP): "pending",
    ("dispatching", Action.ASSIGN): "assigned",
    ("dispatching", Action.CALL_NEXT): "dispatching",
    ("dispatching", Action.EXTEND): "dispatching",
    ("dispatching", Action.PAUSE): "dispatching",
    ("dispatching", Action.RESUME): "dispatching",
    ("dispatching", Action.CANCEL): "cancelled",
    ("pending", Action.ASSIGN): "assigned",
    ("pending", Action.DISPATCH_AGAIN): "dispatching",
    ("pending", Action.CANCEL): "cancelled",
    ("assigned", Action.ASSIGN): "assigned",
    ("assigned", Action.CANNOT_MAKE_IT): "dispatching",
    ("assigned", Action.CANCEL): "cancelled",
    ("assigned", Action.COMPLETE): "completed",
    ("cancelled", Action.DISPATCH_AGAIN): "dispatching",
}

# Why an action is refused, after "this job is <status>, so it cannot be …".
DONE_TO = {
    Action.ASSIGN: "assigned",
    Action.DISPATCH_AGAIN: "dispatched again",
    Action.CALL_NEXT: "moved to the next technician",
    Action.EXTEND: "given more time",
    Action.PAUSE: "paused",
    Action.RESUME: "resumed",
    Action.CANNOT_MAKE_IT: "given back by its technician",
    Action.CANCEL: "cancelled",
    Action.COMPLETE: "completed",
    Action.ACCEPT: "accepted",
    Action.GIVE_UP: "given up",
}


def status_after(status: str, action: Action) -> str | None:
    """The status that `action` leads to, or None when it is not legal in `status`."""
    return LEGAL.get((status, action))


def actions_in(status: str, *, paused: bool, ringing: bool) -> list[Action]:
    """What a person may do to a job right now, in the order of the buttons. More time can be given to a live offer
    whose phone rings (before, its time has not begun); a paused job can be resumed, but not moved on."""
    by_hand = [action for action in Action if action not in (Action.ACCEPT, Action.GIVE_UP)]
    hidden = {Action.CALL_NEXT, Action.EXTEND, Action.PAUSE} if paused else {Action.RESUME}
    if not ringing:
        hidden.add(Action.EXTEND)
    return [action for action in by_hand if (status, action) in LEGAL and action not in hidden]
