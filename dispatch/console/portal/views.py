"""Show the portal's pages: endpoints, deliveries, one delivery, the catalog; and handle their forms."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404, render
from django.urls import reverse
from django.views.decorators.http import require_GET, require_POST

from dispatch.console.outbox.queries import HEALTH, OUTCOMES, TONES
from dispatch.console.portal.session import COOKIE, portal_view
from dispatch.core import clock
from dispatch.core.api.problems import LimitReached
from dispatch.core.ids import read_id
from dispatch.core.languages import gettext as _
from dispatch.core.languages import mark, ngettext
from dispatch.outbox.models import Attempt, Endpoint, Message, PortalLink, Status
from dispatch.outbox.services import endpoints, portal

PAGE = 50
OVERLAPS_H = (0, 1, 24, 168)
# How far back a replay may reach.
FURTHEST = timedelta(days=90)
SAID = {
    "test": mark("The test message is on its way. It is the first of the deliveries below."),
    "limit": mark("No test message was sent: too many messages are waiting. Try again later."),
    "paused": mark("Paused. New messages are kept."),
    "resumed": mark("Resumed. Waiting messages are being sent."),
    "unchanged": mark("Nothing was changed."),
    "saved": mark("Your subscriptions were saved."),
    "again": mark("The message will be sent again."),
    "not_again": mark("This message can't be sent again: it has not ended, or its content was erased."),
    "when": mark("Enter a date and time in the last 90 days."),
}
# What was refused, or changed nothing.
REFUSED = frozenset({"limit", "unchanged", "not_again", "when"})


@portal_view
@require_GET
def home(request: HttpRequest, link: PortalLink) -> HttpResponse:
    """List the link's endpoints; go to the only one."""
    rows = list(portal.endpoints_of(link).select_related("target").defer(*Endpoint.CREDENTIALS)[:200])
    if len(rows) == 1:
        return HttpResponseRedirect(_at(link, rows[0]))
    states = [(row, HEALTH[endpoints.health_of(row).state]) for row in rows]
    return _render(request, link, "portal/home.html", {"rows": states})


@portal_view
@require_GET
def endpoint_page(request: HttpRequest, link: PortalLink, endpoint_id: int) -> HttpResponse:
    """Show one endpoint: its state, its latest deliveries, its secrets and its subscriptions."""
    endpoint = _endpoint(link, endpoint_id)
    return _render(request, link, "portal/endpoint.html", _endpoint_context(request, link, endpoint))


@portal_view
@require_GET
def message_page(request: HttpRequest, link: PortalLink, endpoint_id: int, message_id: int) -> HttpResponse:
    """Show one delivery: its payload and its attempts."""
    endpoint = _endpoint(link, endpoint_id)
    message = get_object_or_404(portal.messages_of(link, endpoint).select_related("group"), pk=message_id)
    attempts = Attempt.objects.of(link.organization_id).filter(message=message)
    return _render(
        request, link, "portal/message.html",
        {
            "endpoint": endpoint, "message": message, "state": _state(message),
            "payload": "" if message.erased_at else _pretty(message.payload),
            "attempts": [(row, OUTCOMES[row.outcome]) for row in attempts.order_by("-id")[:PAGE]],
            "is_ended": message.ended_at is not None or message.status == Status.ERROR,
        },
    )  # fmt: skip


@portal_view
@require_GET
def catalog_page(request: HttpRequest, link: PortalLink) -> HttpResponse:
    """Show the event types that the receiver may subscribe to."""
    entries = [(entry, _shown(entry.example), _shown(entry.schema)) for entry in portal.catalog_for(link)]
    return _render(request, link, "portal/catalog.html", {"entries": entries, "tab": "catalog"})


@portal_view
@require_POST
def act(request: HttpRequest, link: PortalLink, endpoint_id: int) -> HttpResponse:
    """Handle `action`: test, pause, resume, subscribe, again, many or rotate."""
    endpoint = _endpoint(link, endpoint_id)
    match request.POST.get("action", ""):
        case "test":
            try:
                endpoints.send_test(endpoint, actor=portal.actor_of(link))
                said = "test"
            except LimitReached:
                said = "limit"
        case "pause":
            said = "paused" if portal.pause(link, endpoint) else "unchanged"
        case "resume":
            said = "resumed" if portal.resume(link, endpoint) else "unchanged"
        case "subscribe":
            portal.save_subscriptions(link, endpoint, request.POST.getlist("types")[:1000])
            said = "saved"
        case "again":
            return _send_again(request, link, endpoint)
        case "many":
            return _send_many_again(request, link, endpoint)
        case "rotate":
            return _rotate(request, link, endpoint)
        case _:
            return HttpResponse("Unknown action.", status=400)
    return _back(link, endpoint, said)


@portal_view
@require_POST
def leave(request: HttpRequest, link: PortalLink) -> HttpResponse:
    """End the session."""
    portal.close_session(link)
    response = render(request, "portal/closed.html", {"is_left": True, "organization": link.organization})
    response.delete_cookie(COOKIE, path=reverse("portal:home", args=[link.uid]), samesite="Lax")
    return response


def _send_again(request: HttpRequest, link: PortalLink, endpoint: Endpoint) -> HttpResponse:
    message_id = read_id(request.POST.get("message", ""))
    message = get_object_or_404(portal.messages_of(link, endpoint), pk=message_id)
    return _back(link, endpoint, "again" if portal.send_again(link, message) else "not_again")


def _send_many_again(request: HttpRequest, link: PortalLink, endpoint: Endpoint) -> HttpResponse:
    since = _moment(request.POST.get("since", ""), link.organization.time_zone)
    if since is None:
        return _back(link, endpoint, "when")
    only_failed = request.POST.get("which") != "all"
    after_id = read_id(request.POST.get("after", "")) or 0
    result, next_after_id = portal.send_many_again(
        link, endpoint, since, only_failed=only_failed, after_id=after_id
    )
    context = _endpoint_context(request, link, endpoint)
    count = len(result.changed)
    context["said"] = ngettext(
        "{count} message will be sent again, oldest first.",
        "{count} messages will be sent again, oldest first.",
        count,
    ).format(count=f"{count:,}")
    if next_after_id is not None:
        context["rest"] = {
            "since": request.POST["since"],
            "which": "failed" if only_failed else "all",
            "after": next_after_id,
        }
    return _render(request, link, "portal/endpoint.html", context)


def _rotate(request: HttpRequest, link: PortalLink, endpoint: Endpoint) -> HttpResponse:
    hours = read_id(request.POST.get("overlap_h", ""))
    overlap_s = (hours if hours in OVERLAPS_H else 24) * 3600
    _endpoint_row, secret, until = endpoints.rotate_secret(
        endpoint.pk, actor=portal.actor_of(link), overlap_s=overlap_s
    )
    return _render(request, link, "portal/secret.html", {"endpoint": endpoint, "secret": secret, "until": until})


def _endpoint(link: PortalLink, endpoint_id: int) -> Endpoint:
    return get_object_or_404(portal.endpoints_of(link).select_related("target"), pk=endpoint_id)


def _endpoint_context(request: HttpRequest, link: PortalLink, endpoint: Endpoint) -> dict[str, Any]:
    endpoint = _endpoint(link, endpoint.pk)
    own = portal.messages_of(link, endpoint)
    status = request.GET.get("status", "")
    shown = own.filter(status=status) if status in Status.values else own
    if before := read_id(request.GET.get("before", "")):
        shown = shown.filter(pk__lt=before)
    rows = list(shown.order_by("-id").defer("payload")[: PAGE + 1])
    health = endpoints.health_of(endpoint)
    return {
        "endpoint": endpoint, "state": HEALTH[health.state], "last_error": _last_error(endpoint),
        "rows": [(row, _state(row)) for row in rows[:PAGE]],
        "next_before": rows[PAGE - 1].pk if len(rows) > PAGE else None,
        "status": status, "statuses": Status.choices, "secrets": portal.shown_secrets(endpoint),
        "choices": portal.subscription_choices(link, endpoint), "can_resume": portal.can_resume(endpoint),
        "overlaps": OVERLAPS_H, "several": portal.endpoints_of(link).count() > 1,
        "said": _(SAID.get(request.GET.get("said", ""), "")),
        "said_tone": "late" if request.GET.get("said") in REFUSED else "good",
    }  # fmt: skip


def _last_error(endpoint: Endpoint) -> str:
    """Return the last failure, not the reasons of pauses: staff wrote those for colleagues."""
    target = getattr(endpoint, "target", None)
    return str(target.last_error) if target and (target.failures or target.failing_since) else ""


def _state(message: Message) -> tuple[str, str]:
    return TONES[message.status], message.get_status_display()


def _moment(text: str, zone: str) -> datetime | None:
    """Return a moment of the last 90 days that was entered in the organization's time zone."""
    try:
        at = datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone))
        return at if clock.now() - FURTHEST <= at <= clock.now() else None
    except (ValueError, OverflowError):
        return None


def _pretty(payload: str) -> str:
    try:
        return json.dumps(json.loads(payload), indent=2, ensure_ascii=False)
    except ValueError:
        return payload


def _shown(value: Any) -> str:
    return "" if value is None else json.dumps(value, indent=2, ensure_ascii=False)


def _at(link: PortalLink, endpoint: Endpoint) -> str:
    return reverse("portal:endpoint", args=[link.uid, endpoint.pk])


def _back(link: PortalLink, endpoint: Endpoint, said: str) -> HttpResponse:
    return HttpResponseRedirect(f"{_at(link, endpoint)}?said={said}")


def _render(request: HttpRequest, link: PortalLink, template: str, context: dict[str, Any]) -> HttpResponse:
    organization = link.organization
    shared = {"link": link, "organization": organization, "zone": organization.time_zone}
    return render(request, template, {**shared, **context})
