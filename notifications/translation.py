"""Translate the titles, details and outcomes of notifications, which are stored in English.

The forms of `rules.TABLE` are the messages of the catalogs: without the texts for missing values, so that
"{technician|the technician}" is "{technician}".
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

from dispatch.core import languages
from dispatch.core.stored_texts import mark_stored, read_values, translate_stored
from dispatch.jobs.models import CustomerTextKind, Job, TechnicianNotice
from notifications.rules import ACCEPTED, BY_KIND, SEPARATOR, TABLE, Rule

_DEFAULT = re.compile(r"\{(\w+)\|([^}]*)\}")
# Values that a rule derives from an event's data, and names of actors that are no people.
STORED = (
    mark_stored("on: leads are called"),
    mark_stored("in a dry run: nobody is called"),
    mark_stored("off"),
    mark_stored("paused"),
    mark_stored("no longer paused"),
    mark_stored("A provider account is failing"),
    mark_stored("A phone account fails"),  # in rows of earlier versions
    mark_stored("{actor} reported that the endpoint responds again"),  # in rows of earlier versions
    mark_stored("{actor} recorded a newer change for the technician"),  # in rows of earlier versions
    mark_stored("No calls can be made"),
    mark_stored("Jobs are waiting and resume automatically."),
    mark_stored(
        "Job offers, alert calls and calls about changed jobs are placed, and texts are sent, from {name} until "
        "the provider is back."
    ),
    mark_stored("The phone provider refused our account"),
    mark_stored("The phone provider does not respond"),
    mark_stored("carriers blocked {count} of {most} calls"),
    mark_stored("{count} of {most} calls failed"),
    mark_stored("only {count} of {most} calls were answered"),
    mark_stored(
        "The daily spending cap of {amount} {currency} is reached. Calls and texts continue tomorrow. An admin "
        "can raise the cap under Daily spending caps."
    ),
    mark_stored("Phone provider"),
    mark_stored("The customer"),
    mark_stored("Customer"),
    mark_stored("the technician"),
    mark_stored("the customer"),
    mark_stored("no reason given"),
    mark_stored("needs attention"),
    mark_stored("request"),
    mark_stored("unknown"),
    mark_stored("many"),
    mark_stored("{who} acknowledged this {ago} ago, but nothing has happened since"),
    mark_stored("Somebody"),
)
# The titles of rules whose own title has no words.
EXPANDED = {
    "lead_engine.switched": [
        "{actor} stopped all lead calling",
        "{actor} allowed lead calling again",
        "{actor} paused lead scheduling",
        "{actor} resumed lead scheduling",
    ]
}
for _choices in (Job.PendingReason, TechnicianNotice.News, CustomerTextKind):
    for _label in _choices.labels:
        mark_stored(str(_label))


def forms_of_rules() -> Iterator[str]:
    """Yield all forms of titles, details and outcomes: the messages to translate."""
    for rule in TABLE:
        yield from titles_of(rule)
        yield from details_of(rule)
        yield from outcomes_of(rule)


def titles_of(rule: Rule) -> list[str]:
    """Return the forms of the rule's titles."""
    return EXPANDED.get(rule.kind) or [_DEFAULT.sub(r"{\1}", title) for title in (rule.title, rule.many) if title]


def details_of(rule: Rule) -> list[str]:
    """Return the forms of the rule's details that have words. Others are names and places."""
    forms = [_DEFAULT.sub(r"{\1}", part) for part in rule.parts]
    return [form for form in forms if re.search(r"[^\W\d_]", re.sub(r"\{\w+\}", "", form))]


def outcomes_of(rule: Rule) -> list[str]:
    """Return the forms of how the rule's cause ends, such as "{actor} assigned the job to {name}"."""
    found: list[str] = []
    accepted = [ACCEPTED] if "job.assigned" in rule.ends else []
    for phrase in (*rule.ends.values(), *rule.withdraws.values(), *accepted):
        found += [
            f"{{actor}} {phrase.format(to=to)}" for to in ((" to {name}", "") if "{to}" in phrase else ("",))
        ]
    return found


def translate_title(kind: str, title: str) -> str:
    """Return a stored title in the active language, or "" if it was not made from the rule of this kind."""
    rule = BY_KIND.get(kind)
    for form in titles_of(rule) if rule else ():
        if (values := read_values(form, title)) is None:
            continue
        if (words := languages.gettext(form).format(**values)) != title:
            return words
    return languages.gettext(title) if rule and title == rule.label else ""


def translate_details(kind: str, details: str) -> str:
    """Return stored details in the active language. What people entered stays as they wrote it."""
    rule = BY_KIND.get(kind)
    if rule is None or not details:
        return details
    forms = details_of(rule)
    return SEPARATOR.join(_translate_detail(part, forms) for part in details.split(SEPARATOR))


def _translate_detail(part: str, forms: list[str]) -> str:
    for form in forms:
        if (values := read_values(form, part)) is not None:
            return languages.gettext(form).format(**values)
    return translate_stored(part)


@cache
def register() -> None:
    """Let pages of jobs and leads translate outcomes as well, which their events repeat."""
    for rule in TABLE:
        for form in outcomes_of(rule):
            mark_stored(form)
