"""Render messages to browsers: what the notification shows, what it opens, and how urgent it is.

The text is in the recipient's language. With `push_shows_details` turned off, it names only the kind of event.
Addresses are paths of this site.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from django.urls import reverse

from accounts.models import Organization
from dispatch.core import clock, languages
from dispatch.core.languages import gettext as _
from dispatch.jobs import signed_links
from dispatch.jobs.models import Job, Offer, TechnicianNotice
from dispatch.jobs.rules import phrases
from dispatch.jobs.rules.customer_phrases import without_links
from dispatch.jobs.rules.notices import LOSSES
from dispatch.jobs.services import sms
from dispatch.technicians.models import Technician
from dispatch.telephony.speech import language_for
from notifications import rendering
from notifications.channels.push import Envelope
from notifications.models import (
    Alert,
    Delivery,
    EscalationPolicy,
    Level,
    Notification,
    PushMessage,
    PushSubscription,
)
from notifications.rules import BY_KIND, SEPARATOR
from notifications.services import alert_links
from notifications.services.deliveries import is_needed

# In bytes, so that a payload of any alphabet fits into a message.
MAX_TITLE_BYTES, MAX_BODY_BYTES = 600, 1600
NORMAL, HIGH = "normal", "high"
Payload = dict[str, Any]
Purpose = PushMessage.Purpose


@dataclass(frozen=True)
class RenderedPush:
    """A payload for the service worker, and what the push service learns about it."""

    payload: Payload
    envelope: Envelope


def render_push(row: PushMessage) -> RenderedPush | None:
    """Render the message, or return None if it is no longer needed. Its subscription comes with its owner."""
    subscription, organization = row.subscription, row.organization
    if not organization.is_active or not _is_recipient(subscription, row.purpose):
        return None
    with languages.override(_language_of(subscription, organization)):
        made = _RENDERERS[row.purpose](row, subscription)
        if made is None:
            return None
        payload, urgency = made
        payload = {
            **payload,
            "title": _shorten(payload["title"], MAX_TITLE_BYTES),
            "body": _shorten(payload["body"], MAX_BODY_BYTES),
            "lang": languages.active(),
        }
    ttl_s = max(0, int((row.expires_at - clock.now()).total_seconds()))
    return RenderedPush(payload, Envelope(ttl_s, urgency, payload["tag"]))


def tag_of_event(event_id: int) -> str:
    """Return the tag of a user's notification; the page shows its desktop notification under the same one."""
    return f"dispatch-{event_id}"


def shows_details(organization_id: int) -> bool:
    """Return whether the organization lets push notifications show more than the kind of event."""
    policies = EscalationPolicy.objects.of(organization_id)
    return not policies.filter(push_shows_details=False).exists()


def _is_recipient(subscription: PushSubscription, purpose: str) -> bool:
    if subscription.technician is not None:
        return subscription.technician.is_active or purpose == Purpose.JOB_NEWS
    user = subscription.user
    if user is None or (user.sessions_ended_at and subscription.created_at <= user.sessions_ended_at):
        return False
    return alert_links.is_recipient(subscription.organization_id, user)


def _language_of(subscription: PushSubscription, organization: Organization) -> str:
    if subscription.technician is not None:
        return language_for(organization, subscription.technician)
    return (subscription.user.language if subscription.user else "") or organization.language


# --- Users -------------------------------------------------------------------------------------------------------
def _render_alert(row: PushMessage, subscription: PushSubscription) -> tuple[Payload, str] | None:
    related = ("notification__alert", "notification__organization", "notification__user", "organization")
    delivery = Delivery.objects.select_related(*related).filter(pk=row.subject_id).first()
    if delivery is None or delivery.status == Delivery.Status.DROPPED or not is_needed(delivery.notification):
        return None
    notification = delivery.notification
    is_alert = notification.level == Level.CRITICAL
    plain = without_links if notification.subject_type in rendering.ABOUT_CUSTOMERS else str
    if shows_details(row.organization_id):
        title, details = rendering.title_and_body(notification)
    else:
        rule = BY_KIND.get(notification.kind)
        title, details = _(rule.label) if rule else _("Alert"), ""
    payload = {
        "type": "show",
        "tag": tag_of_event(notification.event_id),
        "title": plain(title),
        "body": "\n".join(filter(None, (plain(details), row.organization.name))),
        "url": _path(rendering.link_to(notification)),
        "at": int(notification.created_at.timestamp() * 1000),
        "stays": is_alert,
        "actions": [],
    }
    if is_alert and (acknowledge := alert_links.acknowledge_url(delivery)):
        payload["actions"] = [
            {"action": "acknowledge", "title": _("Acknowledge"), "url": _path(acknowledge)},
            {"action": "open", "title": _("Open"), "url": payload["url"]},
        ]
    return payload, HIGH if is_alert else NORMAL


def _render_close(row: PushMessage, subscription: PushSubscription) -> tuple[Payload, str] | None:
    """Render the end of an alert. Its title is shown, without sound, where a browser must show something."""
    alert = Alert.objects.select_related("acknowledged_by").filter(pk=row.subject_id).first()
    if alert is None or alert.status == Alert.Status.OPEN:
        return None
    name = str(alert.acknowledged_by) if alert.acknowledged_by else ""
    title = _("Acknowledged by {name}").format(name=name) if name else _("The alert was resolved")
    page = f"{reverse('console:alert', args=[alert.pk])}?in={row.organization.slug}"
    payload = {
        "type": "close",
        "tag": tag_of_event(alert.event_id),
        "title": title,
        "body": row.organization.name,
        "url": page,
    }
    return payload, NORMAL


def _render_withdrawal(row: PushMessage, subscription: PushSubscription) -> tuple[Payload, str] | None:
    """Render the end of a notification of what is gone, such as "Dana deleted the note"."""
    notification = Notification.objects.filter(pk=row.subject_id).exclude(settled_at=None).first()
    if notification is None:
        return None
    payload = {
        "type": "close",
        "tag": tag_of_event(notification.event_id),
        "title": rendering.outcome_of(notification) if shows_details(row.organization_id) else _("Resolved"),
        "body": row.organization.name,
        "url": f"{reverse('console:notifications')}?in={row.organization.slug}",
    }
    return payload, NORMAL


def _render_test(row: PushMessage, subscription: PushSubscription) -> tuple[Payload, str]:
    technician = subscription.technician
    if technician is not None:
        url = _path(signed_links.technician_url(technician))
    else:
        url = f"{reverse('console:notification_choices')}?in={row.organization.slug}"
    payload = {
        "type": "show",
        "tag": "dispatch-test",
        "title": _("Test notification"),
        "body": _("If you can read this, notifications work in this browser."),
        "url": url,
    }
    return payload, HIGH


# --- Technicians -------------------------------------------------------------------------------------------------
def _render_offer(row: PushMessage, subscription: PushSubscription) -> tuple[Payload, str] | None:
    related = ("technician", "job__service_type", "job__organization")
    offer = Offer.objects.select_related(*related).filter(pk=row.subject_id).first()
    if offer is None or offer.status != Offer.Status.PENDING or offer.expires_at <= clock.now():
        return None
    distance = phrases.spoken_distance(offer.distance_m, offer.job.organization.distance_unit)
    from_you = _("{distance} from you.").format(distance=distance).removesuffix(".")
    payload = {
        "type": "show",
        "tag": f"dispatch-offer-{offer.pk}",
        "title": _("You have a job offer"),
        "body": _facts_of(offer.job, from_you),
        "url": _path(signed_links.offer_url(offer)),
        "stays": True,
    }
    return payload, HIGH


def _render_job(row: PushMessage, subscription: PushSubscription) -> tuple[Payload, str] | None:
    job = Job.objects.select_related("service_type", "organization").filter(pk=row.subject_id).first()
    technician = subscription.technician
    if (
        job is None
        or technician is None
        or job.technician_id != technician.pk
        or job.status != Job.Status.ASSIGNED
    ):
        return None
    return _news(job, technician, _("The job is yours")), HIGH


def _render_job_news(row: PushMessage, subscription: PushSubscription) -> tuple[Payload, str] | None:
    related = ("technician", "job__service_type", "job__organization")
    notice = TechnicianNotice.objects.select_related(*related).filter(pk=row.subject_id).first()
    if notice is None or notice.status == TechnicianNotice.Status.SUPERSEDED:
        return None
    if not notice.technician.is_active and notice.news not in LOSSES:
        return None
    return _news(notice.job, notice.technician, phrases.news_title(notice.news)), HIGH


def _news(job: Job, technician: Technician, title: str) -> Payload:
    return {
        "type": "show",
        "tag": f"dispatch-job-{job.pk}",
        "title": title,
        "body": _facts_of(job),
        "url": _path(signed_links.technician_url(technician)),
    }


def _facts_of(job: Job, *more: str) -> str:
    """Return the service and the place; the customer's name and number are on the page that it opens."""
    if not shows_details(job.organization_id):
        return job.organization.name
    context = sms.prompt_context(job)
    facts = (context.service, phrases.shorten(context.address), context.arrival, *more)
    return "\n".join((SEPARATOR.join(fact for fact in facts if fact), job.organization.name))


# --- Parts -------------------------------------------------------------------------------------------------------
def _path(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.path}?{parts.query}" if parts.query else parts.path


def _shorten(text: str, most: int) -> str:
    raw = text.encode()
    return text if len(raw) <= most else raw[: most - 3].decode(errors="ignore").rstrip() + "…"


_RENDERERS: dict[str, Callable[[PushMessage, PushSubscription], tuple[Payload, str] | None]] = {
    Purpose.ALERT: _render_alert,
    Purpose.CLOSE: _render_close,
    Purpose.WITHDRAWAL: _render_withdrawal,
    Purpose.TEST: _render_test,
    Purpose.OFFER: _render_offer,
    Purpose.JOB: _render_job,
    Purpose.JOB_NEWS: _render_job_news,
}
