"""What stands around every page: the health bar, the organization one works in, being on duty."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.views.decorators.http import require_GET, require_POST

from accounts import services as accounts
from accounts.current import SESSION_KEY
from accounts.models import User
from dispatch.console import health, web
from dispatch.console.web import console_view


@require_GET
@console_view
def health_bar(request: HttpRequest) -> HttpResponse:
    return web.fragment(request, "console/_health.html", {"health": health.of(request.organization)})


@require_POST
def choose_organization(request: HttpRequest) -> HttpResponse:
    """Goes on in another organization of the person's, at its board."""
    if not isinstance(request.user, User):
        return web.to_sign_in(request)
    slug = request.POST.get("organization", "")
    chosen = next((one for one in web.organizations_of(request.user) if one.slug == slug), None)
    if chosen is None:
        return web.page(request, "console/nowhere.html", {"refused": slug}, status=403)
    request.session[SESSION_KEY] = chosen.pk
    return web.back_to(request, reverse("home"))


@require_POST
@console_view
def duty(request: HttpRequest) -> HttpResponse:
    """Puts the person on or off duty (`on_duty` is 1 or 0)."""
    if request.membership is not None:
        accounts.set_duty(request.membership.pk, request.POST.get("on_duty") == "1", actor=request.actor)
        request.membership.refresh_from_db()
    if web.is_fragment(request):
        return web.fragment(request, "console/_duty.html", {})
    return web.back_to(request, web.here(request))
