"""Parts of every page: the health bar, the choice of organization, duty, and the tour."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import BadRequest, ValidationError
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from accounts import services as accounts
from accounts.handover_notes import services as handover_notes
from accounts.models import HandoverNote, User
from accounts.tenancy import SESSION_KEY, user_of
from dispatch.console import health, views_base
from dispatch.console.views_base import console_view
from dispatch.core.languages import gettext as _


@require_GET
@console_view
def health_bar(request: HttpRequest) -> HttpResponse:
    """Render the health bar, which reloads itself."""
    context = {
        "health": health.current_health(request.organization),
        "phone_to_confirm": views_base.has_phone_to_confirm(request),
    }
    return views_base.render_fragment(request, "console/_health.html", context)


@require_POST
def choose_organization(request: HttpRequest) -> HttpResponse:
    """Switch to another organization of the user, and open its board."""
    if not isinstance(request.user, User):
        return views_base.to_sign_in(request)
    slug = request.POST.get("organization", "")
    chosen = views_base.find_organization(request.user, slug)
    if chosen is None:
        return views_base.render_page(request, "console/nowhere.html", {"refused": slug}, status=403)
    request.session[SESSION_KEY] = chosen.pk
    return views_base.back_to(request, reverse("home"))


@require_POST
@console_view
def dismiss_tour(request: HttpRequest) -> HttpResponse:
    """Store that the user does not want to see the tour again, on any device."""
    accounts.dismiss_tour(user_of(request))
    return HttpResponse(status=204)


@require_http_methods(["GET", "POST"])
@console_view
def duty(request: HttpRequest) -> HttpResponse:
    """Set the user on or off duty (`on_duty` is 1 or 0). A `note` at the end is a hand-over note.

    On GET, render the duty of the user, unless the page has `shown` it (1 or 0).
    """
    if request.method == "GET":
        return _render_duty(request)
    note = None
    if request.membership is not None:
        try:
            note = _set_duty(request)
        except ValidationError as error:
            if not views_base.is_fragment(request):
                raise BadRequest(" ".join(error.messages)) from error
            return views_base.with_note(HttpResponse(status=204), " ".join(error.messages), "late")
        request.membership.refresh_from_db()
    if not views_base.is_fragment(request):
        return views_base.back_to(request, views_base.return_url(request))
    answer = views_base.render_fragment(request, "console/_duty.html", {})
    said: dict[str, Any] = {"duty-changed": {}}
    if note is not None:
        said["dispatch:note"] = {"text": _("Your note is on the board for the next shift."), "tone": "good"}
    return views_base.with_dom_events(answer, said)


def _render_duty(request: HttpRequest) -> HttpResponse:
    if not views_base.is_fragment(request):
        return HttpResponseRedirect(reverse("home"))
    if request.membership is None or request.GET.get("shown") == str(int(request.membership.on_duty)):
        return HttpResponse(status=204)
    return views_base.render_fragment(request, "console/_duty.html", {})


def _set_duty(request: HttpRequest) -> HandoverNote | None:
    if request.POST.get("on_duty") == "1":
        accounts.set_duty(request.membership.pk, True, actor=request.actor)
        return None
    return handover_notes.end_shift(request.membership.pk, request.POST.get("note", ""), actor=request.actor)
