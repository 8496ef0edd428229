"""What an event means for people: who must know, how loudly, in which words. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# Turns a job into one that needs a person.
ALERTS = ("job.pending",)
# Ends that need, with what is said of it ("Ana assigned the job to Unit 12").
SETTLES = {
    "job.assigned": "assigned the job",
    "job.dispatch_again": "dispatched the job again",
    "job.cancelled": "cancelled the job",
    "job.completed": "completed the job",
}
# Changes of membership, on which open sockets ask again whether they may stay.
MEMBERSHIPS = ("membership.changed", "membership.removed")
KINDS = (*ALERTS, *SETTLES, *MEMBERSHIPS)

LONGEST_TITLE, LONGEST_BODY, LONGEST_HOW = 160, 500, 160


@dataclass(frozen=True)
class Message:
    """What is shown: one line, and a second one that tells the place and the person."""

    title: str
    body: str


def choose(dispatchers: Sequence[int], admins: Sequence[int], superusers: Sequence[int]) -> Sequence[int]:
    """The ids of the users who are alerted: all active Dispatchers, else Admins, else superusers."""
    return dispatchers or admins or superusers


def alert_of(job_id: int, data: Mapping[str, Any], job: Mapping[str, str]) -> Message:
    """The alert of a pending job. `data` is the event's (`reason_text`); `job` has service, customer and place."""
    reason = data.get("reason_text") or "it needs a person"
    parts = [job.get("service", ""), job.get("customer", ""), job.get("place", "")]
    return Message(
        f"Job {job_id} needs a dispatcher: {reason}"[:LONGEST_TITLE],
        " · ".join(part for part in parts if part)[:LONGEST_BODY],
    )


def settled_by(kind: str, actor: str, data: Mapping[str, Any]) -> str:
    """How an alert was settled, as a sentence without its full stop."""
    to = f" to {data['technician']}" if kind == "job.assigned" and data.get("technician") else ""
    return f"{actor} {SETTLES[kind]}{to}"[:LONGEST_HOW]
