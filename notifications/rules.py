"""Map events to notifications: recipients, level and wording. Pure functions.

To notify people of another kind of event, add a row to TABLE. Nothing else has to change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from string import Formatter
from typing import Any

from dispatch.core.languages import mark

QUIET, TOAST, CRITICAL = "quiet", "toast", "critical"
DISPATCHERS, ADMINS, EVERYBODY = "dispatchers", "admins", "everybody"

SEPARATOR = " · "  # between the details of a notification
MAX_TITLE, MAX_BODY, MAX_HOW = 160, 500, 160
ACCEPTED = "accepted the job"  # how an assignment by the technician's answer is described


@dataclass(frozen=True)
class Rule:
    """How one kind of event notifies people.

    `level`: quiet (listed), toast (shown briefly), critical (an alert that stays, repeats and escalates until it
    is acknowledged). `to`: DISPATCHERS, ADMINS or EVERYBODY (see `choose_recipients`). `title` and `parts` are
    filled with the event's data, the subject's `id`, the `actor`, and the subject's facts; a part without a value
    is left out. `ends`: event kinds about the same subject that end the cause, each with the phrase that follows
    the actor's name. `withdraws`: the same, for kinds that take away what the notification is about: such an event
    withdraws the notifications of the events whose data have its value of the field `item`. `when`: whether this
    event notifies. `once_in_s`: minimum seconds between two notifications of this kind in one organization.
    `email`: send email by default. `says`: further values derived from the event's data, by name. `many`: the
    title of one notification for `count` events about the same subject whose data have the same value of the
    field `same`; for events that come from outside in any number. `owner`: the field of the event's data with the
    id of the only user whom it concerns, or a list of ids; without a value, `to` applies.
    """

    kind: str
    level: str
    label: str
    title: str
    parts: tuple[str, ...] = ()
    to: str = DISPATCHERS
    ends: Mapping[str, str] = field(default_factory=dict)
    withdraws: Mapping[str, str] = field(default_factory=dict)
    when: Callable[[Mapping[str, Any]], bool] = lambda data: True
    once_in_s: int = 0
    email: bool = False
    says: Callable[[Mapping[str, Any]], Mapping[str, str]] = lambda data: {}
    many: str = ""
    same: str = ""
    item: str = ""
    owner: str = ""

    @property
    def returns(self) -> bool:
        """Whether an acknowledged alert opens again if nothing follows: only if something can end its cause."""
        return bool(self.ends)


def _words_of(data: Mapping[str, Any], words: Mapping[tuple[str, Any], str]) -> str:
    """Join the phrases for the event's fields whose value has a phrase."""
    return " and ".join(phrase for (name, value), phrase in words.items() if data.get(name) == value)


def _leads_now(data: Mapping[str, Any]) -> Mapping[str, str]:
    now = _words_of(
        data,
        {
            ("mode", "live"): "on: leads are called",
            ("mode", "dry_run"): "in a dry run: nobody is called",
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
            ("is_stopped", True): "stopped all lead calling",
            ("is_stopped", False): "allowed lead calling again",
            ("promoter_paused", True): "paused lead scheduling",
            ("promoter_paused", False): "resumed lead scheduling",
        },
    )
    return {"did": did}


def _outage_effect(data: Mapping[str, Any]) -> Mapping[str, str]:
    if data.get("fallback"):
        then = (
            f"Job offers, alert calls and calls about changed jobs are placed, and texts are sent, from "
            f"{data['fallback']} until the provider is back."
        )
        return {"effect": "A provider account is failing", "then": then}
    return {"effect": "No calls can be made", "then": "Jobs are waiting and resume automatically."}


TABLE: tuple[Rule, ...] = (
    Rule(
        "job.pending", CRITICAL, mark("A job needs a dispatcher"),
        "Job {id} needs a dispatcher: {reason_text|needs attention}",
        ("{service}", "{customer}", "{place}"),
        ends={
            "job.assigned": "assigned the job{to}",
            "job.dispatch_again": "dispatched the job again",
            "job.provider_back": "resumed calling: the phone provider is available again",
            "job.spend_resumed": "resumed calling: the daily spending cap allows it again",
            "job.paused": "paused the job",
            "job.cancelled": "canceled the job",
            "job.completed": "completed the job",
        },
        email=True,
    ),
    Rule(
        "job.cannot_make_it", TOAST, mark("A technician can't make it"),
        "Job {id}: {technician|the technician} can't make it", ("{note}", "{service}", "{place}"),
    ),
    Rule(
        "job.technician_unreached", CRITICAL, mark("A technician was not notified of a change"),
        "Job {id}: call {technician|the technician}, who doesn't know that {news_text|the job has changed}",
        ("{reason}", "{service}", "{place}"),
        ends={
            "job.technician_notified": "reached the technician",
            "job.technician_told": "told the technician",
            "job.notice_superseded": "no longer needs to notify the technician",
        },
        email=True,
    ),
    Rule(
        "job.pause_overdue", CRITICAL, mark("A job was paused for too long"),
        "Job {id} has been paused for {minutes|many} minutes", ("{service}", "{customer}", "{place}"),
        ends={
            "job.resumed": "resumed the job",
            "job.assigned": "assigned the job{to}",
            "job.cancelled": "canceled the job",
        },
    ),
    Rule(
        "job.not_started", TOAST, mark("A job was not started in time"),
        "Job {id}: {technician|the technician} has not started", ("{service}", "{customer}", "{place}"),
        ends={
            "job.on_the_way": "reported that the technician is on the way",
            "job.started": "started the work",
            "job.completed": "completed the job",
            "job.assigned": "assigned the job{to}",
            "job.cannot_make_it": "gave the job back",
            "job.cancelled": "canceled the job",
        },
    ),
    Rule(
        "job.not_completed", TOAST, mark("A job was not completed in time"),
        "Job {id}: {technician|the technician} started {minutes} minutes ago and has not completed it",
        ("{service}", "{customer}", "{place}"),
        ends={
            "job.completed": "completed the job",
            "job.assigned": "assigned the job{to}",
            "job.cannot_make_it": "gave the job back",
            "job.cancelled": "canceled the job",
        },
    ),
    Rule(
        "job.running_late", TOAST, mark("A technician is running late"),
        "Job {id}: {technician|the technician} is running late {minutes} min",
        ("{service}", "{customer}", "{place}"), when=lambda data: data.get("by") != "user",
    ),
    Rule(
        "job.cancelled", TOAST, mark("A customer canceled a request"),
        "The customer canceled job {id}", ("{reason}", "{service}", "{customer}", "{place}"),
        when=lambda data: data.get("by") == "customer",
    ),
    Rule(
        "job.corrected", TOAST, mark("A customer corrected a request"),
        "The customer corrected the {what|request} of job {id}", ("{service}", "{customer}", "{place}"),
        when=lambda data: data.get("by") == "customer",
        says=lambda data: {"what": " and the ".join(data.get("changed", []))},
    ),
    Rule(
        "job.customer_replied", TOAST, mark("A customer texted about a job"),
        "The customer of job {id} texted", ("“{body}”", "{service}", "{customer}"),
        many="{count} new texts from {customer|the customer} about job {id}",
    ),
    Rule(
        "job.customer_opted_out", TOAST, mark("A customer with an open job opted out of texts"),
        "The customer of job {id} texted “{body}” and opted out of texts",
        ("They may want to cancel.", "{service}", "{customer}"),
        many="The customer of job {id} opted out of texts {count} times",
    ),
    Rule(
        "job.possible_duplicate", TOAST, mark("A job may be a duplicate"),
        "Job {id} may be a duplicate of job {of}", ("{service}", "{customer}", "{place}"),
    ),
    Rule(
        "job.text_received", TOAST, mark("A technician texted about a job"),
        "{technician} texted about job {id}", ("“{body}”", "Also on {also}", "{service}", "{place}"),
        when=lambda data: bool(data.get("is_main")),
        many="{count} new texts from {technician} about job {id}", same="technician_id",
    ),
    Rule(
        "job.text_failed", TOAST, mark("A text to a technician was not delivered"),
        "Your text to {technician} about job {id} was not delivered", ("{reason}", "Call {phone}"),
    ),
    Rule(
        "job.note_written", TOAST, mark("A colleague mentioned you in a note"),
        "{actor} mentioned you in a note on job {id}", ("{service}", "{customer}", "{place}"),
        owner="mentioned", when=lambda data: bool(data.get("mentioned")),
        withdraws={"job.note_deleted": "deleted the note"}, item="note_id",
        many="{count} notes on job {id} mention you",
    ),
    Rule(
        "technician.may_not_come", CRITICAL, mark("A technician with open jobs opted out of texts"),
        "{name} texted “{word}”, opted out of texts, and may not come", ("Call {phone}", "{jobs}"),
    ),
    Rule(
        "technician.opted_out", TOAST, mark("A technician opted out of texts"),
        "{name} opted out of texts", ("They still get calls.",), when=lambda data: not data.get("jobs"),
    ),
    Rule(
        "technician.pin_locked", TOAST, mark("Wrong PINs were entered for a technician"),
        "{failures} wrong PINs were entered for {name}",
        (
            "The PIN is locked for {minutes} minutes for callers with the same attestation",
            "Ask {name} whether they called",
        ),
    ),
    Rule(
        "technician.auto_paused", TOAST, mark("A technician was paused for missed calls"),
        "{name} was paused",
        ("Missed {misses} calls in a row", "Resume this technician on the board."),
        ends={"technician.back": "resumed the technician"},
    ),
    Rule(
        "endpoint.disabled", TOAST, mark("An endpoint was disabled"),
        "Endpoint {name} was disabled", ("{reason}", "Its messages are kept until you enable it."),
        to=ADMINS, email=True,
        ends={"endpoint.enabled": "enabled the endpoint", "endpoint.deleted": "deleted the endpoint"},
    ),
    Rule(
        "endpoint.circuit_opened", QUIET, mark("An endpoint isn't responding"),
        "An endpoint is failing, so delivery to it is paused", ("{error}",),
        to=ADMINS,
        ends={
            "endpoint.circuit_closed": "resumed delivery to the endpoint",
            "endpoint.deleted": "deleted the endpoint",
        },
    ),
    Rule(
        "endpoint.deferring", TOAST, mark("An endpoint keeps deferring its messages"),
        "Endpoint {name} accepts no messages at the moment", ("{error}", "{since_text}"),
        to=ADMINS, email=True,
        ends={
            "endpoint.accepting": "reported that the endpoint accepts messages again",
            "endpoint.disabled": "disabled the endpoint",
            "endpoint.deleted": "deleted the endpoint",
        },
    ),
    Rule(
        "endpoint.certificate_expiring", TOAST, mark("A client certificate expires soon"),
        "The client certificate of endpoint {name} must be replaced", ("{until_text}",),
        to=ADMINS, email=True,
        ends={
            "endpoint.certificate_replaced": "replaced the certificate",
            "endpoint.deleted": "deleted the endpoint",
        },
    ),
    Rule(
        "group.blocked", TOAST, mark("A message failed and blocks its group"),
        "Message {message_id} failed, so its group {group} waits",
        ("{error}", "{to}", "Retry, ignore or resolve it."),
        to=ADMINS, email=True, ends={"group.unblocked": "decided about the message"},
    ),
    Rule(
        "message.failed", TOAST, mark("A message failed"),
        "Message {id} was not delivered: {error|no reason given}", ("{to}", "{type}"),
        to=ADMINS, once_in_s=3600, email=True,
        when=lambda data: data.get("mode") != "BLOCK_ON_ERROR" and data.get("type") != "endpoint.test",
        ends={
            "message.retried": "retried the message",
            "message.resolved": "resolved the message",
            "message.ignored": "ignored the message",
        },
    ),
    Rule(
        "call.rejected", TOAST, mark("The phone provider rejects calls"),
        "The phone provider rejects calls: {message|no reason given}", ("{code}",),
        to=EVERYBODY, when=lambda data: data.get("about") in ("configuration", "permission"), once_in_s=900,
        email=True,
    ),
    Rule(
        "account.outage_began", CRITICAL, mark("The phone provider is unavailable"),
        "{effect}: {description}", ("Account {name}", "{then}"), says=_outage_effect,
        to=EVERYBODY, email=True,
        ends={
            "account.outage_ended": "reported that the phone provider is available again",
            "account.deactivated": "deactivated the account",
        },
    ),
    Rule(
        "spend_cap.reached", CRITICAL, mark("The daily spending cap is reached"),
        "Calls and texts have stopped: the daily spending cap of {amount} {currency} is reached",
        ("Spent: {spent} {currency}", "{note}", "Alert calls continue. Jobs, leads and texts wait until tomorrow.",
         "An admin can raise the cap under Daily spending caps."),
        to=EVERYBODY, email=True, ends={"spend_cap.resumed": "allowed calls and texts again"},
    ),
    Rule(
        "spend_cap.warned", TOAST, mark("The daily spending cap is nearly reached"),
        "{percent} % of the daily spending cap of {amount} {currency} is used",
        ("Spent: {spent} {currency}", "{note}", "At 100 %, everything but alert calls stops."),
        to=EVERYBODY, email=True,
    ),
    Rule(
        "spend_cap.uncovered", TOAST, mark("The daily spending cap does not count another currency"),
        "The daily spending cap does not count {others}",
        ("The cap: {amount} {currency}", "Amounts are not converted, so the cap doesn't stop what costs {others}.",
         "An admin can choose the provider's currency under Daily spending caps."),
        to=EVERYBODY, email=True,
    ),
    Rule(
        "number.rested", TOAST, mark("A caller number is unhealthy"),
        "Caller number {name} is avoided: {reason}",
        ("until {until_words}", "The other numbers of its pool are used. It returns by itself."),
        to=ADMINS, email=True,
    ),
    Rule(
        "account.signature_refused", TOAST, mark("Webhooks from the phone provider are rejected"),
        "Webhooks from the phone provider are rejected: invalid signature",
        ("Account {name}", "Address {url}", "Check PUBLIC_BASE_URL and the auth token."),
        to=ADMINS, email=True,
    ),
    Rule(
        "account.texts_refused", TOAST, mark("Texts are not delivered"),
        "Texts are not delivered: {message|no reason given}", ("error {code}", "from {number}", "Account {name}"),
        to=ADMINS, email=True,
    ),
    Rule(
        "schedule.failing", CRITICAL, mark("A schedule is failing"),
        "Schedule {name} is failing: {error|no reason given}", ("{work}", "Attempts: {attempts}"),
        ends={
            "schedule.recovered": "resolved the failure",
            "schedule.deleted": "deleted the schedule",
        },
        email=True,
    ),
    Rule(
        "campaign.paused", QUIET, mark("A campaign was paused"),
        "Campaign {name} is paused", ("by {actor}", "Its leads wait until it is resumed."),
        ends={"campaign.resumed": "resumed the campaign"},
    ),
    Rule(
        "lead_dispatch.switched", TOAST, mark("Lead calling was turned on or off"),
        "Lead calling is {now}", ("by {actor}",), says=_leads_now,
    ),
    Rule(
        "lead_engine.switched", TOAST, mark("Lead calling was stopped or started for all organizations"),
        "{actor} {did}", ("in every organization",), says=_engine_did,
    ),
    Rule(
        "event.quarantined", TOAST, mark("An event could not be processed"),
        "An event could not be processed: {kind_of_event|unknown}",
        ("for {reader}", "{error}", "It is retried every few minutes. An operator can retry or discard it."),
        to=ADMINS, ends={"event.released": "resolved the failure"}, email=True,
    ),
    Rule(
        "alert_channel.stopped", TOAST, mark("A chat channel stopped working"),
        "Channel {name} gets no more messages: {reason}", ("Send a test message to use it again.",),
        to=ADMINS, owner="owner_id", email=True,
        ends={"alert_channel.removed": "removed the channel"},
    ),
    Rule(
        "push_subscription.expired", TOAST, mark("A browser no longer gets notifications"),
        "{name} no longer gets push notifications: {reason}",
        ("To get them again, turn them on in that browser.",),
        to=ADMINS, owner="owner_id", email=True, when=lambda data: data.get("owner_id") is not None,
    ),
    Rule(
        "account.token_changed", QUIET, mark("A phone provider account has a new token"),
        "Account {name} has a new token", ("by {actor}",), to=ADMINS,
    ),
)  # fmt: skip

BY_KIND = {rule.kind: rule for rule in TABLE}
KIND_CHOICES = [(rule.kind, rule.label) for rule in TABLE]
# Event kind → the rules whose cause it ends.
ENDS = {kind: [rule for rule in TABLE if kind in rule.ends] for rule in TABLE for kind in rule.ends}
# Event kind → the rules whose notifications it withdraws.
WITHDRAWS = {kind: [rule for rule in TABLE if kind in rule.withdraws] for rule in TABLE for kind in rule.withdraws}
# Membership changes, after which open sockets check their access again.
MEMBERSHIPS = ("membership.changed", "membership.removed", "membership.sessions_ended")
KINDS = (*BY_KIND, *ENDS, *WITHDRAWS, *MEMBERSHIPS)


@dataclass(frozen=True)
class Message:
    """The wording of a notification: a title and a second line with details."""

    title: str
    body: str


@dataclass(frozen=True)
class People:
    """Ids of an organization's active members by role, and of the superusers, each in escalation order."""

    dispatchers: Sequence[int]
    admins: Sequence[int]
    superusers: Sequence[int]


def choose_recipients(people: People, to: str = DISPATCHERS) -> Sequence[int]:
    """Choose the recipients: dispatchers, else admins, else superusers.

    Notifications for admins never go to dispatchers.
    """
    if to == EVERYBODY:
        return list(dict.fromkeys((*people.dispatchers, *people.admins))) or people.superusers
    if to == DISPATCHERS and people.dispatchers:
        return people.dispatchers
    return people.admins or people.superusers


def message_of(rule: Rule, values: Mapping[str, Any]) -> Message:
    """Build the notification's title and body from the event's data, `id`, `actor` and the subject's facts.

    With a `count` above 1, the title is that of several events.
    """
    title = rule.many if values.get("count", 1) > 1 else rule.title
    parts = [_fill(part, values) for part in rule.parts]
    return Message(
        (_fill(title, values) or rule.label)[:MAX_TITLE],
        SEPARATOR.join(part for part in parts if part)[:MAX_BODY],
    )


def describe_resolution(kind: str, rule: Rule, actor: str, data: Mapping[str, Any]) -> str:
    """Describe how the cause ended, as a sentence without a period."""
    to = f" to {data['technician']}" if data.get("technician") else ""
    phrase = rule.ends.get(kind) or rule.withdraws[kind]
    if kind == "job.assigned" and data.get("by", "hand") != "hand":
        phrase = ACCEPTED
    return f"{actor} {phrase.format(to=to)}"[:MAX_HOW]


def _fill(template: str, values: Mapping[str, Any]) -> str:
    """Fill the {fields} of `template`; `{name|otherwise}` names the text for a missing value.

    Return an empty string if a field without such a text has no value.
    """
    filled = ""
    for text, name, _, _ in Formatter().parse(template):
        filled += text
        if name is None:
            continue
        name, _, otherwise = name.partition("|")
        value = str(values.get(name) or otherwise)
        if not value:
            return ""
        filled += value
    return filled
