"""Preview going live: how many people would be called, by which campaigns and in which hours."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import time
from typing import Any

from django.db.models import Count, F, Q, Sum

from dispatch.capacity import account_outages
from dispatch.capacity.models import OutboundNumber
from dispatch.core import clock
from dispatch.core.languages import gettext as _
from dispatch.core.languages import mark, ngettext
from dispatch.leads.models import Campaign, EngineSwitch, Lead, LeadDispatch
from dispatch.leads.rules.states import HELD

_DAYS = (mark("Mon"), mark("Tue"), mark("Wed"), mark("Thu"), mark("Fri"), mark("Sat"), mark("Sun"))


@dataclass(frozen=True)
class CampaignPreview:
    """A campaign with the number of people who wait for a call, and the number of those who are due.

    `obstacle`: why it makes no calls even if the organization is live, or "".
    """

    campaign: Campaign
    people: int
    due: int
    obstacle: str

    @property
    def hours(self) -> str:
        return hours_of(self.campaign)


@dataclass(frozen=True)
class GoLivePreview:
    """The preview of going live.

    `people` counts distinct phones over all campaigns that would call. `lines`: the maximum of their simultaneous
    calls.
    `obstacle`: why no campaign makes calls, or "".
    """

    campaigns: list[CampaignPreview]
    people: int
    due: int
    lines: int
    obstacle: str

    @property
    def calling(self) -> list[CampaignPreview]:
        return [campaign for campaign in self.campaigns if not campaign.obstacle]

    @property
    def silent(self) -> list[CampaignPreview]:
        return [campaign for campaign in self.campaigns if campaign.obstacle]

    @property
    def summary(self) -> str:
        """Describe the consequences in one or two sentences."""
        if self.obstacle:
            return self.obstacle
        if not self.people:
            return _("Nobody is waiting to be called. New leads are called when they are due.")
        hours = sorted({campaign.hours for campaign in self.calling if campaign.people})
        if later := self.people - self.due:
            text = ngettext(
                "{people} person will be called: {now} now, {later} later. Hours: {hours}.",
                "{people} people will be called: {now} now, {later} later. Hours: {hours}.",
                self.people,
            )
        else:
            text = ngettext(
                "{people} person will be called now. Hours: {hours}.",
                "{people} people will be called now. Hours: {hours}.",
                self.people,
            )
        return text.format(
            people=f"{self.people:,}", now=f"{self.due:,}", later=f"{later:,}", hours="; ".join(hours)
        )


def preview(organization_id: int) -> GoLivePreview:
    """Return what would happen if the organization went live now."""
    now = clock.now()
    # A lead held by a switch is due at its original time as soon as it is released.
    is_due = Q(due_at__lte=now) | Q(reason__in=HELD, wanted_at__lte=now)
    waiting = Lead.objects.filter(organization_id=organization_id, status=Lead.Status.BACKLOG)
    counts: dict[str, Any] = {
        "people": Count("phone", distinct=True),
        "due": Count("phone", distinct=True, filter=is_due),
    }
    rows = waiting.order_by().values("campaign").annotate(**counts)
    by_campaign = {pk: (people, due) for pk, people, due in rows.values_list("campaign", *counts)}
    lines = _lines_by_pool(organization_id)
    campaigns = [
        CampaignPreview(
            campaign, *by_campaign.get(campaign.pk, (0, 0)), _obstacle_of(campaign, lines.get(campaign.pool_id, 0))
        )
        for campaign in Campaign.objects.filter(organization_id=organization_id)
        .select_related("agent")
        .order_by("name", "pk")
    ]
    calling = [row.campaign for row in campaigns if not row.obstacle and row.people]
    total = waiting.filter(campaign__in=calling).aggregate(**counts)
    at_once = sum(lines[pool_id] for pool_id in {campaign.pool_id for campaign in calling})
    obstacles = {row.obstacle for row in campaigns if row.people}
    obstacle = _obstacle(organization_id, set() if calling else obstacles)
    return GoLivePreview(campaigns, total["people"], total["due"], at_once, obstacle)


def hours_of(campaign: Campaign) -> str:
    """Format the hours of a campaign, such as "08:00–21:00, Mon–Fri", in the local time of the person called."""
    days = sorted(set(campaign.weekdays))
    if not days:
        return _("never, because no weekday is selected")
    if campaign.window_from == campaign.window_until:
        hours = _("at any hour")
    else:
        hours = f"{_time(campaign.window_from)}–{_time(campaign.window_until)}"
    if len(days) == 7:
        return _("{hours}, every day").format(hours=hours)
    if len(days) > 2 and days == list(range(days[0], days[-1] + 1)):
        return f"{hours}, {_(_DAYS[days[0]])}–{_(_DAYS[days[-1]])}"
    return f"{hours}, {', '.join(_(_DAYS[day]) for day in days)}"


def _time(moment: time) -> str:
    return f"{moment:%H:%M}"


def _lines_by_pool(organization_id: int) -> dict[int, int]:
    """Return how many leads each pool can call at once now. Pools without a usable number are left out."""
    numbers = OutboundNumber.objects.filter(account_outages.IS_USABLE, organization_id=organization_id)
    lines = Sum(F("max_channels") - F("reserved_for_alerts") - F("reserved_for_offers"))
    rows = numbers.order_by().values_list("pool", "pool__concurrency").annotate(lines=lines)
    return {pool_id: min(total, concurrency) for pool_id, concurrency, total in rows}


def _obstacle_of(campaign: Campaign, lines: int) -> str:
    if not campaign.has_words:
        return _("No script: nobody is called until you write one.")
    if campaign.is_paused:
        return _("Paused: nobody is called until you resume it.")
    if lines:
        return ""
    if account_outages.outage_of_pool(campaign.pool_id):
        return _("The phone provider has an outage. Nobody is called until it ends.")
    return _("No caller number is available. Nobody is called until you add or resume one.")


def _obstacle(organization_id: int, obstacles: set[str]) -> str:
    """Return the obstacle of all campaigns. `obstacles`: theirs, if they prevent all calls."""
    if EngineSwitch.objects.filter(is_stopped=True).exists():
        return _("Calling is stopped for all organizations. Nobody is called until it resumes.")
    if EngineSwitch.objects.filter(promoter_paused=True).exists():
        return _("Calls to due leads are paused for all organizations. Nobody is called until they resume.")
    if LeadDispatch.objects.filter(organization_id=organization_id, is_paused=True).exists():
        return _("Calling is paused for this organization. Nobody is called until you resume it.")
    if len(obstacles) > 1:
        return _("No campaign that has leads can make calls.")
    return next(iter(obstacles), "")
