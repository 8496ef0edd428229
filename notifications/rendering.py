"""Render a notification for each channel, from the templates in templates/notifications/.

Each is in the language of its recipient (`language_of`). Titles and details are stored in English, and
`translation` translates them. Texts and calls are shorter in another language: they name the kind of event, its
job and why the job is pending, and leave out details that are sentences.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.template.loader import render_to_string
from django.urls import reverse

from dispatch.core import languages
from dispatch.core.languages import gettext as _
from dispatch.core.models import Event
from dispatch.core.stored_texts import translate_stored
from dispatch.jobs.models import Job
from dispatch.jobs.rules.customer_phrases import without_links
from dispatch.jobs.rules.phrases import spoken_place
from notifications import translation
from notifications.channels.chat import ChatMessage
from notifications.models import Alert, Delivery, Notification
from notifications.rules import BY_KIND, SEPARATOR

# Two GSM segments. Longer texts arrive late and cost more.
MAX_TEXT_LENGTH = 300
# Subjects whose notifications contain what a customer entered: a name, an address, a text.
ABOUT_CUSTOMERS = frozenset({"job", "technician"})
# Kinds whose details are only names and places, which need no translation.
KINDS_WITH_PLAIN_DETAILS = frozenset(
    {
        "job.pending",
        "job.pause_overdue",
        "job.not_started",
        "job.not_completed",
        "job.corrected",
        "job.possible_duplicate",
        "job.note_written",
    }
)
# GSM-7 lacks these letters. One of them makes a text more than twice as expensive.
PLAIN_VOWELS = str.maketrans("áíóúÁÍÓÚ", "aiouAIOU")
# The console page for a subject: its own page, or the list of its kind.
PAGES = {
    "schedule": "console:schedule",
    "endpoint": "console:outbox_endpoint",
    "group": "console:outbox_group",
}
LISTS = {
    "campaign": "console:leads",
    "lead_dispatch": "console:leads",
    "lead_engine": "console:leads",
}


@dataclass(frozen=True)
class Mail:
    """A rendered email. `subject` is one line."""

    subject: str
    text: str
    html: str


def language_of(row: Notification) -> str:
    """Return the language of the recipient: their own, else the organization's, which is the team's."""
    return (row.user.language if row.user else "") or row.organization.language


def render_email(row: Notification) -> Mail:
    """Render the subject, the text and the HTML of an email in the recipient's language."""
    with languages.override(language_of(row)):
        return _render_email(row)


def _render_email(row: Notification) -> Mail:
    title, body = title_and_body(row)
    context = {**_context(row), "title": title, "details": body}
    subject = " ".join(render_to_string("notifications/email_subject.txt", context).split())
    return Mail(
        subject,
        render_to_string("notifications/email.txt", context),
        render_to_string("notifications/email.html", context),
    )


def render_text(row: Notification) -> str:
    """Render the body of an SMS in the recipient's language. Links that a customer entered don't work as links."""
    with languages.override(language_of(row)):
        body = _render_text(row)
        return body if languages.is_english() else body.translate(PLAIN_VOWELS)


def _render_text(row: Notification) -> str:
    plain = without_links if row.subject_type in ABOUT_CUSTOMERS else str
    title, details = short_title_and_body(row)
    # the separator would make a text with Latin letters twice as long
    details = plain(details.replace(SEPARATOR, ", "))
    context = {**_context(row), "title": plain(title), "details": details}
    body = " ".join(render_to_string("notifications/sms.txt", context).split())
    if len(body) <= MAX_TEXT_LENGTH:
        return body
    # If the text is too long, drop the details but keep the instruction
    short = {**context, "details": ""}
    return " ".join(render_to_string("notifications/sms.txt", short).split())[:MAX_TEXT_LENGTH]


def render_chat(row: Delivery, acknowledge_url: str) -> ChatMessage:
    """Render the message to a chat service in the recipient's language.

    Links that a customer entered don't work as links.
    """
    notification = row.notification
    plain = without_links if notification.subject_type in ABOUT_CUSTOMERS else str
    with languages.override(language_of(notification)):
        title, details = title_and_body(notification)
        return ChatMessage(
            key=f"dispatch-{row.pk}",
            title=f"{notification.organization.name}: {plain(title)}",
            text=plain(details),
            link=link_to(notification),
            acknowledge_url=acknowledge_url,
            link_label=_("Open"),
            acknowledge_label=_("Acknowledge"),
        )


def render_call(prompt: str, row: Notification) -> tuple[str, ...]:
    """Render the sentences of a call in the active language, one per line of `voice_<prompt>.txt`.

    The prompt is alert, acknowledged, over or goodbye.
    """
    title, body = short_title_and_body(row)
    context = {
        **_context(row),
        "spoken_title": title,
        "spoken_body": _spoken_body(body),
        "resolution": row.alert.settled_how if row.alert and languages.is_english() else "",
    }
    lines = render_to_string(f"notifications/voice_{prompt}.txt", context).splitlines()
    return tuple(line.strip() for line in lines if line.strip())


def title_and_body(row: Notification | Alert) -> tuple[str, str]:
    """Return the title and the details in the active language."""
    if languages.is_english():
        return row.title, row.body
    if row.kind not in BY_KIND:
        return translate_stored(row.title), translate_stored(row.body)
    if title := translation.translate_title(row.kind, row.title):
        return title, translation.translate_details(row.kind, row.body)
    return short_title_and_body(row)


def short_title_and_body(row: Notification | Alert) -> tuple[str, str]:
    """Return the title and the details for a text or a call, in the active language."""
    if languages.is_english():
        return row.title, row.body
    return _named_title(row), row.body if row.kind in KINDS_WITH_PLAIN_DETAILS else ""


def outcome_of(row: Notification | Alert) -> str:
    """Return how the cause of an alert ended, in the active language; at least that it ended."""
    if languages.is_english() or not row.settled_how:
        return row.settled_how
    words = translate_stored(row.settled_how)
    return words if words != row.settled_how else _("Resolved")


def title_of(row: Notification) -> str:
    """Return the title for a text, in the active language."""
    return short_title_and_body(row)[0]


def _named_title(row: Notification | Alert) -> str:
    """Return the translated name of the kind of event, with the number of its job and why the job is pending."""
    rule = BY_KIND.get(row.kind)
    parts = [_(rule.label) if rule else translate_stored(row.title)]
    if row.subject_type == "job":
        parts += [_("Job {number}").format(number=row.subject_id), _translated_reason(row)]
    return ". ".join(part for part in parts if part)


def _translated_reason(row: Notification | Alert) -> str:
    """Return why the job is pending, in the active language. Empty for any other kind of event."""
    if row.kind != "job.pending" or not row.event_id:
        return ""
    reason = Event.objects.filter(pk=row.event_id).values_list("data__reason", flat=True).first()
    return _(Job.PendingReason(reason).label) if reason in Job.PendingReason.values else ""


def _spoken_body(body: str) -> str:
    """Return the details as sentences, with places as they are spoken."""
    return ". ".join(spoken_place(part) for part in body.split(SEPARATOR) if part.strip())


def link_to(row: Notification) -> str:
    """Return the URL of the subject's console page. It names the organization, because users may have several."""
    return _address(path_to(row) or reverse("console:notifications"), row)


def _address(path: str, row: Notification) -> str:
    return f"{settings.PUBLIC_BASE_URL}{path}{'&' if '?' in path else '?'}in={row.organization.slug}"


def path_to(row: Notification | Alert) -> str:
    """Return the path of the subject's console page, or an empty string."""
    if row.subject_type == "job":
        return f"{reverse('console:board')}?job={row.subject_id}"
    if row.subject_type == "technician":
        return f"{reverse('console:board')}?technician={row.subject_id}"
    if page := PAGES.get(row.subject_type):
        return reverse(page, args=[row.subject_id])
    return reverse(LISTS[row.subject_type]) if row.subject_type in LISTS else ""


def _context(row: Notification) -> dict[str, Any]:
    return {
        "notification": row,
        "alert": row.alert,
        "organization": row.organization,
        "user": row.user,
        "link": link_to(row),
        "choices_link": _address(reverse("console:notification_choices"), row),
    }
