"""What an event means for people: who must know, how loudly, in which words. Pure.

A new kind of event that people must hear of is one more row in TABLE. Nothing else has to change."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from string import Formatter
from typing import Any

QUIET, TOAST, CRITICAL = "quiet", "toast", "critical"
DISPATCHERS, ADMINS = "dispatchers", "admins"

LONGEST_TITLE, LONGEST_BODY, LONGEST_HOW = 160, 500, 160


@dataclass(frozen=True)
class Rule:
    """What becomes of one kind of event.

    `level`: quiet (listed), toast (shown for a moment), critical (an alert: it stays, repeats and escalates until
    somebody acknowledges it). `to`: DISPATCHERS or ADMINS (see `choose`). `title` and `parts` are filled from the
    event's data, from `id` (the subject's), `actor`, and from what is known of the subject (`facts`); a part
    without a value is left out. `ends`: the kinds of events about the same subject that end the cause, with what
    is said of the actor. `when`: whether this event counts at all. `once_in_s`: not again for the organization
    within so many seconds. `email`: sent by e-mail as well, unless the user chose otherwise. `says`: what the
    event's data mean, in words, by name."""

    kind: str
    level: str
    label: str
    title: str
    parts: tuple[str, ...] = ()
    to: str = DISPATCHERS
    ends: Mapping[str, str] = field(default_factory=dict)
    when: Callable[[Mapping[str, Any]], bool] = lambda data: True
    once_in_s: int = 0
    email: bool = False
    says: Callable[[Mapping[str, Any]], Mapping[str, str]] = lambda data: {}


def _words_of(data: Mapping[str, Any], words: Mapping[tuple[str, Any], str]) -> str:
    """What is said of each of the event's fields that has words for its value."""
    return " and ".join(said for (name, value), said in words.items() if data.get(name) == value)


def _leads_now(data: Mapping[str, Any]) -> Mapping[str, str]:
    now = _words_of(
        data,
        {
            ("mode", "live"): "live: they are called",
            ("mode", "dry_run"): "a dry run: nobody is called",
            ("mode", "off"): "off",
            ("is_paused", True): "paused",
            ("is_paused", False): "no longer paused",
        },
    )
    return {"now": now}


def _engine_did(data: Mapping[str, Any]) -> Mapping[str, str]:
    did = _words_of(
        data,
        {
            ("is_stopped", True): "stopped all calling of leads",
            ("is_stopped", False): "let leads be called again",
            ("promoter_paused", True): "paused the scheduling of leads",
            ("promoter_paused", False): "resumed the scheduling of leads",
        },
    )
    return {"did": did}


TABLE: tuple[Rule, ...] = (
    Rule(
        "job.pending", CRITICAL, "A job needs a dispatcher",
        "Job {id} needs a dispatcher: {reason_text|it needs a person}",
        ("{service}", "{customer}", "{place}"),
        ends={
            "job.assigned": "assigned the job{to}",
            "job.dispatch_again": "dispatched the job again",
            "job.cancelled": "cancelled the job",
            "job.completed": "completed the job",
        },
        email=True,
    ),
    Rule(
        "job.cannot_make_it", TOAST, "A technician gives a job back",
        "Job {id}: {technician|the technician} cannot make it", ("{note}", "{service}", "{place}"),
    ),
    Rule(
        "technician.auto_paused", TOAST, "A technician was paused for missed calls",
        "{name} is offered nothing for now",
        ("{misses} calls in a row were not taken", "Call them back in on the board."),
        ends={"technician.back": "called them back in"},
    ),
    Rule(
        "endpoint.disabled", TOAST, "An endpoint was switched off",
        "Endpoint {name} is switched off", ("{reason}", "Its messages are kept until somebody enables it."),
        to=ADMINS, ends={"endpoint.enabled": "enabled the endpoint"}, email=True,
    ),
    Rule(
        "endpoint.circuit_opened", QUIET, "An endpoint does not answer",
        "An endpoint fails and is left alone for a while", ("{error}",),
        to=ADMINS, ends={"endpoint.circuit_closed": "noticed that the endpoint answers again"},
    ),
    Rule(
        "call.rejected", TOAST, "The telephone provider refuses our calls",
        "The telephone provider refuses our calls: {message|it gives no reason}", ("{code}",),
        to=ADMINS, when=lambda data: data.get("about") in ("configuration", "permission"), once_in_s=900,
        email=True,
    ),
    Rule(
        "schedule.failing", CRITICAL, "A schedule fails",
        "Schedule {name} fails: {error|it gives no reason}", ("{work}", "attempts: {attempts}"),
        ends={
            "schedule.recovered": "settled it",
            "schedule.deleted": "deleted the schedule",
        },
        email=True,
    ),
    Rule(
        "campaign.paused", QUIET, "A campaign was paused",
        "Campaign {name} is paused", ("by {actor}", "Its leads wait."),
        ends={"campaign.resumed": "resumed the campaign"},
    ),
    Rule(
        "lead_dispatch.switched", TOAST, "The calling of leads was switched",
        "The calling of leads is {now}", ("by {actor}",), says=_leads_now,
    ),
    Rule(
        "lead_engine.switched", TOAST, "The calling of leads was stopped or started for all",
        "{actor} {did}", ("in every organization",), says=_engine_did,
    ),
    Rule(
        "account.token_changed", QUIET, "A telephone account has a new token",
        "The account {name} has a new token", ("by {actor}",), to=ADMINS,
    ),
)  # fmt: skip

BY_KIND = {rule.kind: rule for rule in TABLE}
KIND_CHOICES = [(rule.kind, rule.label) for rule in TABLE]
# event kind → the rules whose cause it ends
ENDS = {kind: [rule for rule in TABLE if kind in rule.ends] for rule in TABLE for kind in rule.ends}
# Changes of membership, on which open sockets ask again whether they may stay.
MEMBERSHIPS = ("membership.changed", "membership.removed")
KINDS = (*BY_KIND, *ENDS, *MEMBERSHIPS)


@dataclass(frozen=True)
class Message:
    """What is shown: one line, and a second one that tells the place and the person."""

    title: str
    body: str


@dataclass(frozen=True)
class People:
    """Ids of an organization's active members by role, and of the superusers, each in the order to be told."""

    dispatchers: Sequence[int]
    admins: Sequence[int]
    superusers: Sequence[int]


def choose(people: People, to: str = DISPATCHERS) -> Sequence[int]:
    """Who is told: all dispatchers, else admins, else superusers; what is for admins never goes to dispatchers."""
    if to == DISPATCHERS and people.dispatchers:
        return people.dispatchers
    return people.admins or people.superusers


def message_of(rule: Rule, given: Mapping[str, Any]) -> Message:
    """The notification's words; `given` has the event's data, `id`, `actor` and the subject's facts."""
    parts = [_filled(part, given) for part in rule.parts]
    return Message(
        (_filled(rule.title, given) or rule.label)[:LONGEST_TITLE],
        " · ".join(part for part in parts if part)[:LONGEST_BODY],
    )


def settled_by(kind: str, rule: Rule, actor: str, data: Mapping[str, Any]) -> str:
    """How the cause ended, as a sentence without its full stop."""
    to = f" to {data['technician']}" if data.get("technician") else ""
    return f"{actor} {rule.ends[kind].format(to=to)}"[:LONGEST_HOW]


def _filled(template: str, given: Mapping[str, Any]) -> str:
    """`template` with its {fields} filled; `{name|otherwise}` has words for when there is no such value. Empty
    when a field without such words has no value."""
    made = ""
    for text, name, _, _ in Formatter().parse(template):
        made += text
        if name is None:
            continue
        name, _, otherwise = name.partition("|")
        value = str(given.get(name) or otherwise)
        if not value:
            return ""
        made += value
    return made
