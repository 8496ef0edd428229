"""What people do on the pages of leads."""

from __future__ import annotations

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404
from django.urls import reverse
from django.views.decorators.http import require_POST

from accounts.models import Membership
from dispatch.console import web
from dispatch.console.web import console_view
from dispatch.leads.models import Campaign, Lead, LeadDispatch
from dispatch.leads.services import by_hand, switches


@require_POST
@console_view
def switch(request: HttpRequest) -> HttpResponse:
    """Off, dry run or live, and the pause, of the organization: an Admin's to say."""
    if request.role != Membership.Role.ADMIN:
        messages.warning(request, "Only an Admin turns calling on or off.")
        return web.back_to(request, reverse("console:leads"))
    mode = request.POST.get("mode", "")
    paused = request.POST.get("paused", "")
    if mode in LeadDispatch.Mode.values:
        row = switches.set_dispatch(request.organization.pk, mode=mode, actor=request.actor)
        messages.success(request, f"Calling leads: {row.get_mode_display().lower()}.")
    elif paused in ("0", "1"):
        switches.set_dispatch(request.organization.pk, is_paused=paused == "1", actor=request.actor)
        messages.success(request, "Calling leads is paused." if paused == "1" else "Calling leads goes on.")
    return web.back_to(request, reverse("console:leads"))


@require_POST
@console_view
def campaign(request: HttpRequest, campaign_id: int, action: str) -> HttpResponse:
    """Pauses a campaign, or lets it go on."""
    row = get_object_or_404(Campaign.objects.of(request.organization), pk=campaign_id)
    if action not in ("pause", "resume"):
        raise Http404
    switches.pause_campaign(row.pk, action == "pause", actor=request.actor)
    messages.success(request, f"{row.name} is paused." if action == "pause" else f"{row.name} goes on.")
    return web.back_to(request, reverse("console:leads"))


@require_POST
@console_view
def lead(request: HttpRequest, lead_id: int, action: str) -> HttpResponse:
    """Calls a lead now, or cancels it."""
    row = get_object_or_404(Lead.objects.of(request.organization), pk=lead_id)
    do = {"now": by_hand.dispatch_now, "cancel": by_hand.cancel}.get(action)
    if do is None:
        raise Http404
    try:
        do(row.pk, actor=request.actor)
        messages.success(request, "It is due now, through every gate." if action == "now" else "It is cancelled.")
    except by_hand.LeadConflict as error:
        messages.warning(request, str(error.detail))
    return web.back_to(request, web.here(request))
