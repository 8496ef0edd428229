"""Show one campaign: its figures, calls in progress and leads; call a member first; export its leads."""

from __future__ import annotations

import json
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404
from django.urls import reverse
from django.views.decorators.http import require_POST, require_safe

from accounts.models import Membership
from dispatch.console import views_base
from dispatch.console.leads import campaign_queries as queries
from dispatch.console.views_base import console_view
from dispatch.core import csv_files
from dispatch.core.languages import gettext as _
from dispatch.leads.models import Campaign
from dispatch.telephony import number_check_calls, voice_previews
from dispatch.telephony.admin.refusals import describe_refusal
from dispatch.telephony.errors import CallNotAllowed, NoLine, PhoneBusy


@require_safe
@console_view
def show_campaign(request: HttpRequest, campaign_id: int) -> HttpResponse:
    """Show the campaign: `?show=…&disposition=…&phone=…`, and `&before=<id>` for older leads."""
    row = _campaign(request, campaign_id)
    leads, older = queries.page_of(queries.filtered_leads(row, request.GET), request.GET.get("before"))
    context = {
        **_figures(request, row),
        "rows": leads,
        "older": older,
        "asked": {name: request.GET.get(name, "") for name in queries.FILTERS},
        "is_filtered": any(request.GET.get(name) for name in (*queries.FILTERS, "before")),
        "choices": queries.show_choices(),
        "export_query": request.GET.urlencode(),
    }
    return views_base.render_page(request, "console/leads/campaign.html", context)


@require_safe
@console_view
def render_figures(request: HttpRequest, campaign_id: int) -> HttpResponse:
    """Render the part of the page that changes."""
    context = _figures(request, _campaign(request, campaign_id))
    return views_base.render_fragment(request, "console/leads/_campaign.html", context)


@require_safe
@console_view
def export_leads(request: HttpRequest, campaign_id: int) -> Any:  # a streaming response
    """Return the leads that match the filters as CSV, page by page."""
    row = _campaign(request, campaign_id)
    pages = queries.export_pages(queries.filtered_leads(row, request.GET), request.organization.time_zone)
    return csv_files.csv_stream(
        f"dispatch-{request.organization.slug}-{row.code}.csv",
        queries.EXPORTED,
        ([[_cell(value) for value in values] for values in page] for page in pages),
    )


def _cell(value: Any) -> Any:
    if isinstance(value, dict):
        value = json.dumps(value, ensure_ascii=False) if value else ""
    return value if isinstance(value, int) else csv_files.escape_formula(str(value))


@require_POST
@console_view
def call_member(request: HttpRequest, campaign_id: int) -> HttpResponse:
    """Call the member's own phone with the campaign's script. For admins only."""
    row = _campaign(request, campaign_id)
    back = views_base.back_to(request, reverse("console:campaign", args=[row.pk]))
    phone: Any = getattr(request.user, "phone", "")
    number = voice_previews.find_number(request.organization.pk, row.pool_id)
    if request.role != Membership.Role.ADMIN:
        messages.warning(request, _("Only admins can place test calls. Ask an admin."))
    elif not (row.script.strip() or row.agent_answers):
        messages.warning(request, _("This campaign has no script. Write one first."))
    elif not phone:
        messages.warning(request, _("Your account has no phone number. Enter it in your notification settings."))
    elif number is None:
        messages.warning(
            request, _("No number of the campaign's pool can place calls. Add one, or resume a paused one.")
        )
    else:
        try:
            voice_previews.place_preview(
                number, request.organization, "campaign", row.pk, phone.as_e164, actor=request.actor
            )
            calling = _("Calling {phone}. You'll hear the script and can press its keys.")
            messages.success(request, calling.format(phone=phone.as_national))
        except voice_previews.TooManyPreviews:
            text = _("No call was placed: Your phone had {count} test calls within an hour. Try again later.")
            messages.warning(request, text.format(count=voice_previews.MOST_PER_HOUR))
        except (NoLine, PhoneBusy, CallNotAllowed, number_check_calls.NumberPaused) as error:
            messages.warning(request, _("No call was placed: {reason}.").format(reason=_(describe_refusal(error))))
    return back


def _campaign(request: HttpRequest, campaign_id: int) -> Campaign:
    campaigns = Campaign.objects.of(request.organization).select_related("pool", "organization", "agent")
    return get_object_or_404(campaigns.prefetch_related("branches"), pk=campaign_id)


def _figures(request: HttpRequest, row: Campaign) -> dict[str, Any]:
    counts, outcomes = queries.load_row(row)
    return {
        "current": "leads",
        "campaign": row,
        "row": counts,
        "outcomes": outcomes,
        "day": queries.load_day(row),
        "live": queries.live_calls(row),
        "is_admin": request.role == Membership.Role.ADMIN,
    }
