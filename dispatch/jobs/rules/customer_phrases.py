"""Build the texts that keep a customer informed about their request.

They contain nothing that a customer entered, so that nobody can use an organization to text others. They are in
the active language, which is the customer's.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from datetime import datetime
from zoneinfo import ZoneInfo

from dispatch.core.languages import clock_time
from dispatch.core.languages import gettext as _


@dataclass(frozen=True)
class CustomerFacts:
    """What a text to a customer may name.

    `sender`: the name that begins the text. `service`: the organization's name for the service. `technician`: the
    first name. `eta`: the local time of arrival, or empty. `contact`: the number that customers call, or empty.
    `is_first`: the phone has had no text about this job, so this one says how to stop them. `instead_of`: the
    first name of the technician whom the customer still expects, or empty. `late_minutes`: the reported delay.
    """

    sender: str
    service: str
    technician: str
    eta: str
    contact: str
    url: str
    is_first: bool
    instead_of: str = ""
    late_minutes: int = 0


def customer_text(kind: str, facts: CustomerFacts) -> str:
    """Return the text of a kind: received, assigned, on_the_way, running_late, completed or cancelled."""
    match kind:
        case "received":
            said = _("we received your request: {service}. Track, change or cancel it here")
        case "assigned" if facts.instead_of not in ("", facts.technician):
            said = _("{technician} is coming instead of {other} for your request: {service}. Details")
        case "assigned":
            said = _("{technician} is coming for your request: {service}. Details")
        case "on_the_way" if facts.eta:
            said = _("{technician} is on the way and should arrive at about {eta}. Details")
        case "on_the_way":
            said = _("{technician} is on the way. Details")
        case "running_late":
            said = _("{technician} is running about {late_minutes} minutes late. Details")
        case "completed":
            said = _("the work is done: {service}. Thank you. Details")
        case "cancelled" if facts.contact:
            said = _("your request was canceled: {service}. If you didn't expect this, call {contact}. Details")
        case "cancelled":
            said = _("your request was canceled: {service}. If you didn't expect this, call us. Details")
        case other:
            raise ValueError(other)
    said = said.format(
        service=facts.service,
        technician=facts.technician,
        other=facts.instead_of,
        eta=facts.eta,
        late_minutes=facts.late_minutes,
        contact=facts.contact,
    )
    opt_out = _("Reply STOP to end these texts.") if facts.is_first else ""
    return " ".join(filter(None, (f"{facts.sender}: {said}: {facts.url}", opt_out)))


def page_text(sender: str, url: str) -> str:
    """Return the reply to a customer's text: the link to their page."""
    return _("{sender}: Track, change or cancel your request here: {url}").format(sender=sender, url=url)


def help_text(sender: str, url: str) -> str:
    """Return the reply to HELP from a customer."""
    return f"{page_text(sender, url)} {_('STOP ends texts.')}"


# What follows a comma without being a first name.
_COMPANIES = frozenset({"co", "corp", "gmbh", "inc", "llc", "ltd"})
_GENERATIONS = frozenset({"", "jr", "sr", "ii", "iii", "iv"})


def first_name(name: str) -> str:
    """Return the first name of a technician.

    "Ann Lee", "Lee, Ann" and "Ann Lee, Jr." become "Ann". A name that is not a person's stays whole: "Unit 12",
    "Smith & Sons", "Ann/Bob", "Lee Plumbing, LLC".
    """
    flat = " ".join(name.split())
    before, _, after = (part.strip() for part in flat.partition(","))
    ending = after.lower().replace(".", "")
    if not before or any(char.isdigit() or char in "&/" for char in flat) or ending in _COMPANIES:
        return flat
    return (before if ending in _GENERATIONS else after).split()[0]


def local_time(moment: datetime | None, zone: str) -> str:
    """Return the local time of day, such as "15:20"; empty for None."""
    if moment is None:
        return ""
    local = moment.astimezone(ZoneInfo(zone))
    return f"{local.hour}:{local.minute:02d}"


def told_time(moment: datetime | None, zone: str) -> str:
    """Return the local time of day as a text says it, such as "3:20 PM"; empty for None."""
    return clock_time(moment.astimezone(ZoneInfo(zone)) if moment else None)


# Characters of a name that change how the rest is shown: controls, marks of direction, and invisible ones. The two
# joiners that some scripts need stay.
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})
_JOINERS = "\u200c\u200d"
_SCHEME = re.compile(r"(?i)\b[a-z][a-z0-9+.-]*:/+")
_DOT = re.compile(r"(?<=[^\W_])[\u200c\u200d]*([.\u3002\uff0e\uff61])(?=[^\W\d_])")


def without_links(entered: str) -> str:
    """Return what a customer entered on one line, so that no phone turns it into a link.

    "evil.example" becomes "evil. example". Line breaks become commas, so that nobody can
    add a line that looks like ours.
    """
    lines = ", ".join(line.strip() for line in entered.splitlines() if line.strip())
    shown = "".join(
        char for char in lines if char in _JOINERS or char == "\t" or unicodedata.category(char) not in _HIDDEN
    )
    return _DOT.sub(r"\1 ", _SCHEME.sub("", " ".join(shown.split())))
