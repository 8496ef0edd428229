"""Show the page of all leads, and the history of a phone number."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.views.decorators.http import require_safe

from accounts.models import Membership
from dispatch.console import views_base
from dispatch.console.leads import queries
from dispatch.console.views_base import console_view
from dispatch.core.api.serializers import MAX_LATEST
from dispatch.core.languages import gettext as _
from dispatch.core.phone_numbers import InvalidPhone, parse_possible_phone
from dispatch.leads.explain import explain_lead
from dispatch.leads.go_live_preview import preview
from dispatch.leads.models import DoNotCall, DoNotCallEverywhere
from dispatch.leads.services.consents import consents_of
from dispatch.telephony.models import OptOut

MAX_LEADS_SHOWN = 50


@require_safe
@console_view
def overview(request: HttpRequest) -> HttpResponse:
    """Show campaigns, why leads wait, and the use of lines."""
    return views_base.render_page(request, "console/leads/leads.html", _context(request))


@require_safe
@console_view
def figures_fragment(request: HttpRequest) -> HttpResponse:
    """Render the part of the page that changes."""
    return views_base.render_fragment(request, "console/leads/_figures.html", _context(request))


@require_safe
@console_view
def go_live(request: HttpRequest) -> HttpResponse:
    """Show who would be called by going live, and ask for confirmation. For admins only."""
    if request.role != Membership.Role.ADMIN:
        messages.warning(request, _("Only admins can turn calling on or off. Ask an admin."))
        return views_base.back_to(request, reverse("console:leads"))
    context = {"current": "leads", "preview": preview(request.organization.pk)}
    return views_base.render_page(request, "console/leads/go_live.html", context)


@require_safe
@console_view
def phone(request: HttpRequest) -> HttpResponse:
    """Show the leads with a phone number, and why each was or was not called."""
    entered = request.GET.get("q", "").strip()
    number = e164_of(entered, request.organization.default_region) if entered else ""
    context = {"current": "leads", "q": entered, "phone": number, "wrong": bool(entered) and not number}
    if number:
        leads = list(queries.leads_of_phone(request.organization, number).order_by("-id")[:MAX_LEADS_SHOWN])
        calls, context["max_calls"] = queries.calls_of(leads), MAX_LATEST
        context["lines"] = [{"lead": lead, "why": explain_lead(lead), "calls": calls[lead.pk]} for lead in leads]
        context["consents"] = consents_of(request.organization.pk, number)[:20]
        context["refused"] = DoNotCall.objects.of(request.organization).filter(phone=number).first()
        context["refused_everywhere"] = DoNotCallEverywhere.objects.filter(phone=number).first()
        context["opted_out"] = OptOut.objects.of(request.organization).filter(phone=number).first()
    return views_base.render_page(request, "console/leads/phone.html", context)


def e164_of(text: str, region: str) -> str:
    """Return the entered phone number in E.164, or "" if it is not valid."""
    try:
        return parse_possible_phone(text, region).as_e164
    except InvalidPhone:
        return ""


def _context(request: HttpRequest) -> dict[str, object]:
    return {
        "current": "leads",
        "leads": queries.load_overview(request.organization),
        "may_switch": request.role == Membership.Role.ADMIN,
    }
