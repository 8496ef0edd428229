"""Handle the actions on the pages of leads."""

from __future__ import annotations

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404
from django.urls import reverse
from django.views.decorators.http import require_POST

from accounts.models import Membership
from dispatch.console import views_base
from dispatch.console.views_base import console_view
from dispatch.core.languages import gettext as _
from dispatch.leads.models import Campaign, Lead, LeadDispatch
from dispatch.leads.services import actions, switches


@require_POST
@console_view
def switch_mode(request: HttpRequest) -> HttpResponse:
    """Set the organization's mode (off, dry run or live), or pause and resume calling.

    For admins only. Going live asks for confirmation first.
    """
    if request.role != Membership.Role.ADMIN:
        messages.warning(request, _("Only admins can turn calling on or off. Ask an admin."))
        return views_base.back_to(request, reverse("console:leads"))
    mode = request.POST.get("mode", "")
    paused = request.POST.get("paused", "")
    if mode == LeadDispatch.Mode.LIVE and "confirmed" not in request.POST:
        return views_base.back_to(request, reverse("console:leads_go_live"))
    if mode in LeadDispatch.Mode.values:
        row = switches.set_dispatch(request.organization.pk, mode=mode, actor=request.actor)
        messages.success(request, _("Lead calling: {mode}.").format(mode=_(row.get_mode_display()).lower()))
    elif paused in ("0", "1"):
        switches.set_dispatch(request.organization.pk, is_paused=paused == "1", actor=request.actor)
        notice = _("Lead calling is paused.") if paused == "1" else _("Lead calling has resumed.")
        messages.success(request, notice)
    return views_base.back_to(request, reverse("console:leads"))


@require_POST
@console_view
def act_on_campaign(request: HttpRequest, campaign_id: int, action: str) -> HttpResponse:
    """Pause or resume a campaign."""
    row = get_object_or_404(Campaign.objects.of(request.organization), pk=campaign_id)
    if action not in ("pause", "resume"):
        raise Http404
    try:
        switches.pause_campaign(row.pk, action == "pause", actor=request.actor)
        notice = _("{campaign} is paused.") if action == "pause" else _("{campaign} has resumed.")
        messages.success(request, notice.format(campaign=row.name))
    except switches.CampaignWithoutScript as error:
        messages.warning(request, _(str(error.detail)))
    is_own_page = request.POST.get("from") == "campaign"
    url = reverse("console:campaign", args=[row.pk]) if is_own_page else reverse("console:leads")
    return views_base.back_to(request, url)


@require_POST
@console_view
def act_on_lead(request: HttpRequest, lead_id: int, action: str) -> HttpResponse:
    """Call a lead now, or cancel it."""
    row = get_object_or_404(Lead.objects.of(request.organization), pk=lead_id)
    do = {"now": actions.dispatch_now, "cancel": actions.cancel_lead}.get(action)
    if do is None:
        raise Http404
    try:
        done = do(row.pk, actor=request.actor)
        if action == "now":
            text = _("Lead queued. It is called as soon as the calling rules allow.")
        elif done.status == Lead.Status.FINISHED:
            text = _("Lead canceled.")
        else:
            text = _("Lead canceled. Its call is being hung up.")
        messages.success(request, text)
    except actions.LeadConflict as error:
        messages.warning(request, str(error.detail))
    return views_base.back_to(request, views_base.return_url(request))
