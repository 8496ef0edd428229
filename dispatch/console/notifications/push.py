"""Push notifications in the user's own browsers, and in a technician's: turn on, test, remove.

A browser asks for its state, and changes it, by JSON. It names itself by the digest of its endpoint.
"""

from __future__ import annotations

import json
import re
from typing import Any

from django.conf import settings
from django.contrib import messages
from django.core.exceptions import BadRequest, ValidationError
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404
from django.urls import reverse
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from accounts.models import Organization
from accounts.tenancy import user_of
from dispatch.console import views_base
from dispatch.console.views_base import console_view
from dispatch.core.events import Actor
from dispatch.core.languages import gettext as _
from dispatch.jobs import signed_links
from dispatch.jobs.public.common import with_signed_link
from dispatch.technicians.models import Technician
from dispatch.telephony.speech import language_for
from notifications.models import PushSubscription
from notifications.services import alert_links, push_keys, push_subscriptions
from notifications.services.push_sign_out import COOKIE
from notifications.services.push_subscriptions import Owner, TestRefused

MAX_BODY_BYTES = 4096
COOKIE_AGE_S = 400 * 24 * 3600


@require_http_methods(["GET", "POST"])
@console_view
def own_browser(request: HttpRequest) -> HttpResponse:
    """Return the state of the user's browsers; on POST, change this one first."""
    user = user_of(request)
    if not alert_links.is_recipient(request.organization.pk, user):
        return JsonResponse({"problem": _("You are not a member of this organization.")}, status=403)
    return _handle(request, request.organization, user, request.actor, has_cookie=True)


@with_signed_link(signed_links.technician_of, lambda technician: language_for(technician.organization, technician))
def technician_browser(request: HttpRequest, technician: Technician) -> HttpResponse:
    """Return the state of a technician's browsers; on POST, change this one first."""
    actor = Actor("technician", technician.pk, technician.name)
    return _handle(request, technician.organization, technician, actor, has_cookie=False)


@require_GET
@console_view
def list_browsers(request: HttpRequest) -> HttpResponse:
    """Render the list of the user's browsers. A browser that opens the address gets the page with it."""
    if not views_base.is_fragment(request):
        return _back(request)
    return views_base.render_fragment(request, "console/notices/_push_browsers.html", push_context(request))


@require_POST
@console_view
def test_browser(request: HttpRequest, subscription_id: int) -> HttpResponse:
    """Send a test notification to one of the user's browsers."""
    try:
        push_subscriptions.send_test(_own(request, subscription_id), actor=request.actor)
    except TestRefused as error:
        messages.warning(request, str(error))
    return _back(request)


@require_POST
@console_view
def remove_browser(request: HttpRequest, subscription_id: int) -> HttpResponse:
    """Remove one of the user's browsers."""
    row = _own(request, subscription_id)
    push_subscriptions.remove(row, actor=request.actor)
    messages.success(request, _("{name} was removed.").format(name=row.name))
    return _back(request)


def push_context(request: HttpRequest) -> dict[str, Any]:
    """Return what the list of browsers shows."""
    states = push_subscriptions.states_of(request.organization.pk, user_of(request))
    return {"browsers": states, "is_push_testing": any(state.is_testing for state in states)}


def _handle(
    request: HttpRequest, organization: Organization, owner: Owner, actor: Actor, *, has_cookie: bool
) -> HttpResponse:
    row = None
    if request.method == "POST":
        try:
            row = _change(_body_of(request), request, organization, owner, actor)
        except ValidationError as error:
            return JsonResponse({"problem": " ".join(error.messages)}, status=422)
        except TestRefused as error:
            return JsonResponse({"problem": str(error)}, status=429)
    browsers = push_subscriptions.subscriptions_of(organization.pk, owner)
    answer = JsonResponse(
        {"key": push_keys.load_keys().public, "browsers": list(browsers.values_list("endpoint_hash", flat=True))}
    )
    if row is not None and has_cookie:
        answer.set_cookie(
            COOKIE, str(row.public_id), max_age=COOKIE_AGE_S, httponly=True, samesite="Lax",
            secure=settings.SESSION_COOKIE_SECURE,
        )  # fmt: skip
    return answer


def _change(
    body: dict[str, Any], request: HttpRequest, organization: Organization, owner: Owner, actor: Actor
) -> PushSubscription | None:
    """Do what the browser asks for. Return its new subscription, if it has one."""
    if body.get("do") == "on":
        entered = body.get("subscription")
        agent = request.headers.get("User-Agent", "")[:400]
        return push_subscriptions.subscribe(
            organization, owner, entered if isinstance(entered, dict) else {}, agent=agent, actor=actor
        )
    rows = push_subscriptions.subscriptions_of(organization.pk, owner)
    row = rows.filter(endpoint_hash=_digest_of(body)).first()
    if body.get("do") == "off":
        if row is not None:
            push_subscriptions.remove(row, actor=actor)
    elif body.get("do") == "test":
        if row is None:
            raise TestRefused(_("This browser was removed."))
        push_subscriptions.send_test(row, actor=actor)
    else:
        raise BadRequest("Must be on, off or test.")
    return None


def _digest_of(body: dict[str, Any]) -> str:
    """Return the digest by which the browser names itself, or "" if it is none."""
    given = body.get("browser")
    return given if isinstance(given, str) and re.fullmatch(r"[0-9a-f]{64}", given) else ""


def _body_of(request: HttpRequest) -> dict[str, Any]:
    if len(request.body) > MAX_BODY_BYTES:
        raise BadRequest("The body is too long.")
    try:
        body = json.loads(request.body)
    except (ValueError, RecursionError):
        raise BadRequest("The body must be JSON.") from None
    if not isinstance(body, dict):
        raise BadRequest("The body must be an object.")
    return body


def _own(request: HttpRequest, subscription_id: int) -> PushSubscription:
    own = push_subscriptions.subscriptions_of(request.organization.pk, user_of(request))
    row: PushSubscription = get_object_or_404(own, pk=subscription_id)
    return row


def _back(request: HttpRequest) -> HttpResponse:
    return views_base.back_to(request, reverse("console:notification_choices") + "#push")
