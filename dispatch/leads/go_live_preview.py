"""Preview going live: how many people would be called, by which campaigns and in which hours."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import time
from typing import Any

from django.db.models import Count, Q, Sum

from dispatch.capacity.models import OutboundNumber
from dispatch.core import clock
from dispatch.core.languages import gettext as _
from dispatch.core.languages import mark
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

    `people` counts distinct phones over all campaigns that would call. `lines`: the maximum of simultaneous calls.
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
            return "Nobody is waiting to be called. New leads are called when they are due."
        hours = sorted({campaign.hours for campaign in self.calling if campaign.people})
        later = self.people - self.due
        when = f": {self.due:,} now, {later:,} later" if later else " now"
        return f"{_people(self.people)} will be called{when}. Hours: {'; '.join(hours)}."


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
    campaigns = [
        CampaignPreview(campaign, *by_campaign.get(campaign.pk, (0, 0)), _obstacle_of(campaign))
        for campaign in Campaign.objects.filter(organization_id=organization_id)
        .select_related("agent")
        .order_by("name", "pk")
    ]
    calling = [row.campaign for row in campaigns if not row.obstacle and row.people]
    total = waiting.filter(campaign__in=calling).aggregate(**counts)
    numbers = OutboundNumber.objects.filter(
        pool__in={campaign.pool_id for campaign in calling},
        is_paused=False,
        pool__is_paused=False,
        account__is_active=True,
    )
    lines = numbers.aggregate(lines=Sum("max_channels"))["lines"] or 0
    obstacle = _obstacle(organization_id, bool(calling), lines)
    return GoLivePreview(campaigns, total["people"], total["due"], lines, obstacle)


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


def _people(count: int) -> str:
    return f"{count:,} {'person' if count == 1 else 'people'}"


def _obstacle_of(campaign: Campaign) -> str:
    if not campaign.has_words:
        return _("No script: nobody is called until you write one.")
    return _("Paused: nobody is called until you resume it.") if campaign.is_paused else ""


def _obstacle(organization_id: int, has_people: bool, lines: int) -> str:
    if EngineSwitch.objects.filter(is_stopped=True).exists():
        return _("Calling is stopped for all organizations. Nobody is called until it resumes.")
    if LeadDispatch.objects.filter(organization_id=organization_id, is_paused=True).exists():
        return _("Calling is paused for this organization. Nobody is called until you resume it.")
    if has_people and not lines:
        return _("No caller number is available. Nobody is called until you add or resume one.")
    return ""
