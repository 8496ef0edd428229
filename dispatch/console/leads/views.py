"""The page of all leads, and the history of a phone."""

from __future__ import annotations

import phonenumbers
from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_safe

from accounts.models import Membership
from dispatch.console import web
from dispatch.console.leads import reading
from dispatch.console.web import console_view
from dispatch.leads.models import DoNotCall
from dispatch.leads.why import why

MOST_OF_A_PHONE = 50


@require_safe
@console_view
def overview(request: HttpRequest) -> HttpResponse:
    """How the campaigns go, why leads wait, and what the lines do."""
    return web.page(request, "console/leads/leads.html", _context(request))


@require_safe
@console_view
def figures(request: HttpRequest) -> HttpResponse:
    """What of it changes."""
    return web.fragment(request, "console/leads/_figures.html", _context(request))


@require_safe
@console_view
def phone(request: HttpRequest) -> HttpResponse:
    """A phone's leads, and why each was or was not called."""
    asked = request.GET.get("q", "").strip()
    number = e164_of(asked, request.organization.default_region) if asked else ""
    context = {"current": "leads", "q": asked, "phone": number, "wrong": bool(asked) and not number}
    if number:
        leads = list(reading.of_phone(request.organization, number).order_by("-id")[:MOST_OF_A_PHONE])
        calls = reading.calls_of(leads)
        context["lines"] = [{"lead": lead, "why": why(lead), "calls": calls[lead.pk]} for lead in leads]
        context["refused"] = DoNotCall.objects.of(request.organization).filter(phone=number).first()
    return web.page(request, "console/leads/phone.html", context)


def e164_of(text: str, region: str) -> str:
    """A phone as somebody typed it, in E.164; "" for what is none."""
    try:
        number = phonenumbers.parse(text, region)
    except phonenumbers.NumberParseException:
        return ""
    if not phonenumbers.is_possible_number(number):
        return ""
    return phonenumbers.format_number(number, phonenumbers.PhoneNumberFormat.E164)


def _context(request: HttpRequest) -> dict[str, object]:
    return {
        "current": "leads",
        "leads": reading.overview(request.organization),
        "may_switch": request.role == Membership.Role.ADMIN,
    }
