"""A notification in the words of each channel, from the templates under templates/notifications/."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.template.loader import render_to_string
from django.urls import reverse

from notifications.models import Alert, Notification

# GSM texts of several parts arrive late and cost more each: at most two of them.
LONGEST_TEXT = 300
# Where in the browser a thing is dealt with: on its own page, or on one of its kind.
PAGES = {
    "schedule": "console:schedule",
    "endpoint": "console:outbox_endpoint",
}
LISTS = {
    "campaign": "console:leads",
    "lead_dispatch": "console:leads",
    "lead_engine": "console:leads",
}


@dataclass(frozen=True)
class Mail:
    """`subject` is one line."""

    subject: str
    text: str
    html: str


def email(row: Notification) -> Mail:
    given = _given(row)
    subject = " ".join(render_to_string("notifications/email_subject.txt", given).split())
    return Mail(
        subject,
        render_to_string("notifications/email.txt", given),
        render_to_string("notifications/email.html", given),
    )


def text(row: Notification) -> str:
    """What an SMS says."""
    given = _given(row)
    said = " ".join(render_to_string("notifications/sms.txt", given).split())
    if len(said) <= LONGEST_TEXT:
        return said
    # what is too long loses its details, not what can be done about it
    short = {**given, "notification": {"title": row.title, "body": ""}}
    return " ".join(render_to_string("notifications/sms.txt", short).split())[:LONGEST_TEXT]


def spoken(what: str, row: Notification) -> tuple[str, ...]:
    """The sentences of a call: one a line of `voice_<what>.txt`, which is alert, acknowledged or over."""
    lines = render_to_string(f"notifications/voice_{what}.txt", _given(row)).splitlines()
    return tuple(line.strip() for line in lines if line.strip())


def link_to(row: Notification) -> str:
    """Where in the browser it is dealt with; it names the organization, for people who work in several."""
    return _address(path_to(row) or reverse("console:notifications"), row)


def _address(path: str, row: Notification) -> str:
    return f"{settings.PUBLIC_BASE_URL}{path}{'&' if '?' in path else '?'}in={row.organization.slug}"


def path_to(row: Notification | Alert) -> str:
    """The page of what it is about; empty when there is none."""
    if row.subject_type == "job":
        return f"{reverse('console:board')}?job={row.subject_id}"
    if page := PAGES.get(row.subject_type):
        return reverse(page, args=[row.subject_id])
    return reverse(LISTS[row.subject_type]) if row.subject_type in LISTS else ""


def _given(row: Notification) -> dict[str, Any]:
    return {
        "notification": row,
        "alert": row.alert,
        "organization": row.organization,
        "user": row.user,
        "link": link_to(row),
        "choices_link": _address(reverse("console:notification_choices"), row),
    }
