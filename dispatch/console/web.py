"""What every view of the console needs: who may look, and how a page or a fragment is answered."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import wraps
from typing import Any
from urllib.parse import urlencode

from django.core.exceptions import BadRequest
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render, resolve_url
from django.urls import reverse
from django.utils.http import url_has_allowed_host_and_scheme

from accounts.current import SESSION_KEY
from accounts.models import Membership, Organization, User
from dispatch.console import health
from dispatch.console.menu import menu
from dispatch.core import clock
from notifications import hints

View = Callable[..., HttpResponse]


def console_view(view: View) -> View:
    """For a signed-in Dispatcher or Admin who works in an organization; `request.organization`, `.role` and
    `.actor` are set. Others are sent to sign in, or told why not. A link from outside names its organization
    (`?in=<slug>`): whoever works in several goes on in that one."""

    @wraps(view)
    def guarded(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        if not isinstance(request.user, User):
            return to_sign_in(request)
        if any("\x00" in text for _, texts in request.POST.lists() for text in texts):
            raise BadRequest("A NUL character cannot be stored.")
        if (slug := request.GET.get("in")) and request.method == "GET" and _goes_on_in(request, slug):
            return HttpResponseRedirect(_without_in(request))
        if request.organization is None or request.role not in Membership.Role.values:
            return page(request, "console/nowhere.html", {}, status=403)
        answer = view(request, *args, **kwargs)
        answer.headers.setdefault("Cache-Control", "no-store")
        answer.headers.setdefault("Vary", "HX-Request")
        return answer

    return guarded


def _goes_on_in(request: HttpRequest, slug: str) -> bool:
    """Whether it is another organization of the person's, which is then the one they work in."""
    assert isinstance(request.user, User)
    if request.organization is not None and request.organization.slug == slug:
        return False
    chosen = next((one for one in organizations_of(request.user) if one.slug == slug), None)
    if chosen is not None:
        request.session[SESSION_KEY] = chosen.pk
    return chosen is not None


def _without_in(request: HttpRequest) -> str:
    """This address without `?in=`."""
    query = request.GET.copy()
    del query["in"]
    return f"{request.path}?{query.urlencode()}" if query else request.path


def is_fragment(request: HttpRequest) -> bool:
    """Whether htmx asks for a part of the page; going back in the history wants the whole of it."""
    return request.headers.get("HX-Request") == "true" and "HX-History-Restore-Request" not in request.headers


def page(request: HttpRequest, template: str, context: dict[str, Any], *, status: int = 200) -> HttpResponse:
    """A whole page: `context` with what "console/base.html" shows around it. `current` names its menu entry."""
    around: dict[str, Any] = {"menu": menu(request, context.get("current", "")), **_common(request)}
    if request.organization is not None:
        around["health"] = health.of(request.organization)
        around.setdefault("since", hints.floor(request.organization.pk))
    return render(request, template, {**around, **context}, status=status)


def fragment(request: HttpRequest, template: str, context: dict[str, Any], *, status: int = 200) -> HttpResponse:
    """A part of a page."""
    return render(request, template, {**_common(request), **context}, status=status)


def back_to(request: HttpRequest, address: str) -> HttpResponse:
    """Redirects, also when htmx asked."""
    if is_fragment(request):
        return HttpResponse(status=204, headers={"HX-Redirect": address})
    return HttpResponseRedirect(address)


def noted(answer: HttpResponse, text: str, tone: str = "good") -> HttpResponse:
    """Has the page show a note ("Job #12: assigned.") with this fragment."""
    return told(answer, {"dispatch:note": {"text": text, "tone": tone}})


def told(answer: HttpResponse, happened: dict[str, Any]) -> HttpResponse:
    """Has these DOM events happen on the page with this fragment."""
    answer["HX-Trigger"] = json.dumps(happened)
    return answer


def here(request: HttpRequest) -> str:
    """Where a form stood, if that is one of our pages; else the board."""
    address = request.headers.get("Referer", "")
    ours = url_has_allowed_host_and_scheme(address, {request.get_host()}, require_https=request.is_secure())
    return address if ours else reverse("home")


def organizations_of(user: User) -> list[Organization]:
    """Those in which the person may work, by name."""
    if user.is_superuser:
        return list(Organization.objects.filter(is_active=True).order_by("name")[:50])
    return sorted((one.organization for one in user.active_memberships), key=lambda one: one.name.casefold())


def _common(request: HttpRequest) -> dict[str, Any]:
    assert isinstance(request.user, User)
    if request.organization is None:
        return {"now": clock.now(), "organizations": organizations_of(request.user)}
    return {
        "now": clock.now(),
        "zone": request.organization.time_zone,
        "unit": request.organization.distance_unit,
        "organizations": organizations_of(request.user),
    }


def to_sign_in(request: HttpRequest) -> HttpResponse:
    """To the sign-in page, and back here afterwards."""
    here = request.get_full_path() if request.method == "GET" and not is_fragment(request) else reverse("home")
    address = f"{resolve_url('admin:login')}?{urlencode({'next': here})}"
    return back_to(request, address)
