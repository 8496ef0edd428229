"""Define the state machines of a job and of an offer.

For a job: the actions that are legal in each status, and the status that each leads to. For an offer: the statuses
that may follow each status.
"""

from collections.abc import Mapping
from enum import StrEnum

from dispatch.core.languages import mark


class Action(StrEnum):
    """Actions on a job. Dispatchers can take all but the last three, which are for technicians and the cascade."""

    ASSIGN = "assign"
    DISPATCH_AGAIN = "dispatch_again"
    CALL_NEXT = "call_next"
    EXTEND = "extend"
    PAUSE = "pause"
    RESUME = "resume"
    CORRECT = "correct"
    CANNOT_MAKE_IT = "cannot_make_it"
    CANCEL = "cancel"
    ON_THE_WAY = "on_the_way"
    REPORT_LATE = "report_late"
    MARK_STARTED = "mark_started"
    COMPLETE = "complete"
    REOPEN = "reopen"
    MERGE_DUPLICATE = "merge_duplicate"
    NOT_A_DUPLICATE = "not_a_duplicate"
    TECHNICIAN_TOLD = "technician_told"
    ACCEPT = "accept"
    GIVE_UP = "give_up"
    CALL_AFTER_OUTAGE = "call_after_outage"


NOT_FOR_DISPATCHERS = frozenset({Action.ACCEPT, Action.GIVE_UP, Action.CALL_AFTER_OUTAGE})

LEGAL: Mapping[tuple[str, Action], str] = {
    ("dispatching", Action.TECHNICIAN_TOLD): "dispatching",
    ("pending", Action.TECHNICIAN_TOLD): "pending",
    ("assigned", Action.TECHNICIAN_TOLD): "assigned",
    ("completed", Action.TECHNICIAN_TOLD): "completed",
    ("cancelled", Action.TECHNICIAN_TOLD): "cancelled",
    ("dispatching", Action.MERGE_DUPLICATE): "cancelled",
    ("pending", Action.MERGE_DUPLICATE): "cancelled",
    ("assigned", Action.MERGE_DUPLICATE): "cancelled",
    ("dispatching", Action.NOT_A_DUPLICATE): "dispatching",
    ("pending", Action.NOT_A_DUPLICATE): "pending",
    ("assigned", Action.NOT_A_DUPLICATE): "assigned",
    ("dispatching", Action.ACCEPT): "assigned",
    ("dispatching", Action.GIVE_UP): "pending",
    ("dispatching", Action.ASSIGN): "assigned",
    ("dispatching", Action.CALL_NEXT): "dispatching",
    ("dispatching", Action.EXTEND): "dispatching",
    ("dispatching", Action.PAUSE): "dispatching",
    ("dispatching", Action.RESUME): "dispatching",
    ("dispatching", Action.CANCEL): "cancelled",
    ("pending", Action.ACCEPT): "assigned",
    ("pending", Action.CALL_AFTER_OUTAGE): "dispatching",
    ("pending", Action.ASSIGN): "assigned",
    ("pending", Action.DISPATCH_AGAIN): "dispatching",
    ("dispatching", Action.CORRECT): "dispatching",
    ("pending", Action.CORRECT): "pending",
    ("pending", Action.CANCEL): "cancelled",
    ("assigned", Action.ASSIGN): "assigned",
    ("assigned", Action.CORRECT): "assigned",
    ("assigned", Action.CANNOT_MAKE_IT): "dispatching",
    ("assigned", Action.CANCEL): "cancelled",
    ("assigned", Action.ON_THE_WAY): "assigned",
    ("assigned", Action.MARK_STARTED): "assigned",
    ("assigned", Action.REPORT_LATE): "assigned",
    ("assigned", Action.COMPLETE): "completed",
    ("completed", Action.REOPEN): "assigned",
    ("cancelled", Action.DISPATCH_AGAIN): "dispatching",
}

# The participle for "Job 12: <done>.", in the admin.
DONE_TO = {
    Action.ASSIGN: "assigned",
    Action.DISPATCH_AGAIN: "dispatched again",
    Action.CALL_NEXT: "moved to the next technician",
    Action.EXTEND: "given more time",
    Action.PAUSE: "paused",
    Action.RESUME: "resumed",
    Action.CORRECT: "corrected",
    Action.CANNOT_MAKE_IT: "given back by its technician",
    Action.CANCEL: "canceled",
    Action.ON_THE_WAY: "marked as on the way",
    Action.MARK_STARTED: "started",
    Action.COMPLETE: "completed",
    Action.REOPEN: "reopened",
    Action.MERGE_DUPLICATE: "merged",
    Action.NOT_A_DUPLICATE: "marked as no duplicate",
    Action.TECHNICIAN_TOLD: "marked as known to the technician",
    Action.REPORT_LATE: "reported as late",
    Action.ACCEPT: "accepted",
    Action.GIVE_UP: "given up",
    Action.CALL_AFTER_OUTAGE: "called again after an outage",
}

# Statuses within a sentence, besides those of DONE_TO.
STATUS_WORDS = (mark("dispatching"), mark("pending"))
# What follows "This job is <status>, so".
IMPOSSIBLE = {
    Action.ASSIGN: mark("it can't be assigned"),
    Action.DISPATCH_AGAIN: mark("it can't be dispatched again"),
    Action.CALL_NEXT: mark("it can't be moved to the next technician"),
    Action.EXTEND: mark("it can't be given more time"),
    Action.PAUSE: mark("it can't be paused"),
    Action.RESUME: mark("it can't be resumed"),
    Action.CORRECT: mark("it can't be corrected"),
    Action.CANNOT_MAKE_IT: mark("it can't be given back by its technician"),
    Action.CANCEL: mark("it can't be canceled"),
    Action.ON_THE_WAY: mark("it can't be marked as on the way"),
    Action.MARK_STARTED: mark("it can't be started"),
    Action.COMPLETE: mark("it can't be completed"),
    Action.REOPEN: mark("it can't be reopened"),
    Action.MERGE_DUPLICATE: mark("it can't be merged"),
    Action.NOT_A_DUPLICATE: mark("it can't be marked as no duplicate"),
    Action.TECHNICIAN_TOLD: mark("its technician can't be marked as informed"),
    Action.REPORT_LATE: mark("it can't be reported as late"),
    Action.ACCEPT: mark("it can't be accepted"),
    Action.GIVE_UP: mark("it can't be given up"),
    Action.CALL_AFTER_OUTAGE: mark("it can't be called again after an outage"),
}

# What is said instead if the job is already what the action would make it.
ALREADY = {
    ("cancelled", Action.CANCEL): mark("This job is canceled already."),
    ("completed", Action.COMPLETE): mark("This job is completed already."),
}

# A key that arrived in time, or that takes a job nobody has, counts after its offer was closed.
OFFER_LEGAL: Mapping[str, frozenset[str]] = {
    "pending": frozenset({"accepted", "declined", "timed_out", "failed", "rescinded"}),
    "accepted": frozenset({"rescinded"}),
    "declined": frozenset({"accepted"}),
    "timed_out": frozenset({"accepted", "declined"}),
    "failed": frozenset({"accepted", "declined"}),
    "rescinded": frozenset({"accepted"}),
}


def status_after(status: str, action: Action) -> str | None:
    """Return the status that `action` leads to, or None if it is illegal in `status`."""
    return LEGAL.get((status, action))


def actions_in(
    status: str,
    *,
    paused: bool,
    ringing: bool,
    started: bool = False,
    duplicate: bool = False,
    uninformed: bool = False,
) -> list[Action]:
    """Return the actions that a dispatcher may take on a job now, in button order.

    Extending needs a live offer whose phone is ringing, because its deadline starts then. A paused job can be
    resumed but not advanced. A started job can't be started, and nobody is on the way or late. `duplicate`: the
    job is flagged as a probable duplicate. `uninformed`: a technician was not, or not yet, notified of a change.
    """
    person_actions = [action for action in Action if action not in NOT_FOR_DISPATCHERS]
    hidden = {Action.CALL_NEXT, Action.EXTEND, Action.PAUSE} if paused else {Action.RESUME}
    if started:
        hidden |= {Action.ON_THE_WAY, Action.REPORT_LATE, Action.MARK_STARTED}
    if not ringing:
        hidden.add(Action.EXTEND)
    if not duplicate:
        hidden |= {Action.MERGE_DUPLICATE, Action.NOT_A_DUPLICATE}
    if not uninformed:
        hidden.add(Action.TECHNICIAN_TOLD)
    return [action for action in person_actions if (status, action) in LEGAL and action not in hidden]
