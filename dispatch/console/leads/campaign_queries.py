"""Read the data of one campaign's page. Every statement reads few rows, or those of one day."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

from django.db import transaction
from django.db.models import QuerySet, TextField
from django.db.models.functions import Cast

from accounts.models import Organization
from dispatch.console.leads.queries import BarRow, CampaignRow, build_bars, next_hours
from dispatch.core import clock, languages
from dispatch.core.db.prepared import fetch_all, prefer_index_plans
from dispatch.core.ids import read_id
from dispatch.core.languages import gettext as _
from dispatch.core.languages import mark
from dispatch.core.phone_numbers import InvalidPhone, parse_possible_phone
from dispatch.leads import progress
from dispatch.leads.explain import describe_engine_hold
from dispatch.leads.models import Campaign, Lead, LeadDispatch
from dispatch.leads.rules.descriptions import describe_waiting
from dispatch.leads.rules.states import Reason
from dispatch.leads.services.branches import branches_of
from dispatch.telephony.models import Call
from dispatch.telephony.rules import NEVER_PLACED

PAGE, MAX_LIVE = 50, 20
EXPORT_PAGE, EXPORT_MOST = 2000, 1_000_000
FILTERS = ("show", "disposition", "phone")
DAY = timedelta(hours=24)
# Figures of a day that took SLOW_S to add up are kept for ten times as long, at most MAX_AGE_S.
SLOW_S, MAX_AGE_S, MAX_CACHED = 0.1, 30.0, 1000
_cached_days: dict[tuple[int, str], tuple[float, DayFigures]] = {}

# Calls of one campaign in the last day, with those to people whom its leads talked to: by hour, end and keys. `||`
# keeps the planner from an index on the purpose: without statistics, all calls of a purpose seem few.
CALLS_OF_DAY = """
SELECT date_trunc('hour', requested_at), purpose, status, keys_pressed, price_unit, count(*), sum(price),
       count(*) FILTER (WHERE error_code = 'no_agent')
FROM telephony_call
WHERE organization_id = %(organization)s AND requested_at > %(since)s AND purpose || '' IN ('lead', 'connect')
  AND context @> jsonb_build_object('campaign_id', %(campaign)s::bigint)
GROUP BY 1, 2, 3, 4, 5
"""


@dataclass
class DayFigures:
    """What happened in the last 24 hours. `costs`: the known prices by currency."""

    calls: int = 0
    answered: int = 0
    agent_failures: int = 0
    hours: list[BarRow] = field(default_factory=list)
    keys: list[BarRow] = field(default_factory=list)
    costs: list[tuple[str, Decimal]] = field(default_factory=list)


def load_row(campaign: Campaign) -> tuple[CampaignRow, list[BarRow]]:
    """Return the campaign with its counts, and its outcomes. Many leads are counted twice a minute at most."""
    now = clock.now()
    dispatch = LeadDispatch.objects.of(campaign.organization_id).first()
    row = CampaignRow(campaign, dispatch.mode if dispatch else LeadDispatch.Mode.OFF)
    is_paused = dispatch is not None and dispatch.is_paused
    row.hold = describe_waiting(Reason.ORGANIZATION_PAUSED) if is_paused else describe_engine_hold()
    outcomes: Counter[str] = Counter()
    for counted in progress.count_leads(campaign.organization_id, next_hours(campaign.organization, now)):
        if counted.campaign_id != campaign.pk:
            continue
        row.add(counted)
        if counted.status == Lead.Status.FINISHED:
            outcomes[counted.outcome] += counted.leads
    return row, build_bars(outcomes.most_common())


def load_day(campaign: Campaign) -> DayFigures:
    """Return the figures of the campaign's calls in the last 24 hours.

    If adding them up takes long, all viewers of this process share them for up to half a minute.
    """
    key = campaign.pk, languages.active()  # the figures contain words
    until, cached = _cached_days.get(key, (0.0, DayFigures()))
    if time.monotonic() < until:
        return cached
    began = time.monotonic()
    figures = _load_day(campaign)
    took_s = time.monotonic() - began
    if took_s >= SLOW_S:
        if len(_cached_days) >= MAX_CACHED:
            _cached_days.clear()
        _cached_days[key] = time.monotonic() + min(10 * took_s, MAX_AGE_S), figures
    return figures


def _load_day(campaign: Campaign) -> DayFigures:
    now = clock.now()
    params = {"organization": campaign.organization_id, "campaign": campaign.pk, "since": now - DAY}
    with transaction.atomic():
        prefer_index_plans()
        rows = fetch_all(CALLS_OF_DAY, params)
    figures = DayFigures()
    keys: Counter[str] = Counter()
    costs: dict[str, Decimal] = {}
    by_hour: dict[datetime, list[int]] = {}
    for hour, purpose, status, pressed, unit, count, price, agent_failures in rows:
        if price is not None:
            costs[unit] = costs.get(unit, Decimal()) + price
        if purpose != "lead" or status in NEVER_PLACED:
            continue
        figures.calls += count
        figures.agent_failures += agent_failures
        in_hour = by_hour.setdefault(hour, [0, 0])
        in_hour[0] += count
        if status in (Call.Status.COMPLETED, Call.Status.ANSWERED):
            figures.answered += count
            in_hour[1] += count
            keys[pressed[-1:]] += count
    figures.costs = sorted(costs.items())
    figures.hours = _hour_bars(campaign.organization, by_hour, now)
    figures.keys = _key_bars(campaign, keys)
    return figures


def _hour_bars(organization: Organization, by_hour: Mapping[datetime, list[int]], now: datetime) -> list[BarRow]:
    zone = ZoneInfo(organization.time_zone)
    current = now.replace(minute=0, second=0, microsecond=0)
    hours = [current - timedelta(hours=back) for back in range(23, -1, -1)]
    most = max((calls for calls, _ in by_hour.values()), default=0)
    counts = [by_hour.get(hour, [0, 0]) for hour in hours]
    return [
        BarRow(f"{hour.astimezone(zone):%H}", calls, 100 * calls / most if most else 0.0, answered_words(answered))
        for hour, (calls, answered) in zip(hours, counts, strict=True)
    ]


def answered_words(answered: int) -> str:
    """Format how many calls were answered: "3 answered"."""
    return _("{count} answered").format(count=f"{answered:,}")


def _key_bars(campaign: Campaign, keys: Counter[str]) -> list[BarRow]:
    """Return how often each key was the last pressed in an answered call."""
    branches = branches_of(campaign)
    most = max(keys.values(), default=0)

    def words(key: str) -> str:
        if not key:
            return _("No key")
        if key == campaign.opt_out_key:
            return f"{key}: {_('Never call again')}"
        branch = branches.get(key)
        return f"{key}: {branch.disposition or _(branch.get_action_display())}" if branch else key

    return [BarRow(words(key), keys[key], 100 * keys[key] / most) for key in sorted(keys)]


def live_calls(campaign: Campaign) -> list[dict[str, Any]]:
    """Return the campaign's leads that are being called, with their calls."""
    leads = list(
        Lead.objects.filter(campaign=campaign, status=Lead.Status.PROCESSING).order_by("claimed_at")[:MAX_LIVE]
    )
    calls = {
        (call.subject_id, call.attempt): call
        for call in Call.objects.filter(purpose="lead", subject_id__in=[lead.pk for lead in leads], ended_at=None)
    }
    return [{"lead": lead, "call": calls.get((lead.pk, lead.token))} for lead in leads]


def show_choices() -> list[tuple[str, str]]:
    """Return the choices of the filter `show`: statuses, then outcomes."""
    outcomes = [(value, label) for value, label in Lead.Outcome.choices if value]
    return [("", mark("All leads")), *Lead.Status.choices, *outcomes]


def filtered_leads(campaign: Campaign, asked: Mapping[str, Any]) -> QuerySet[Lead]:
    """Return the campaign's leads that match `show` (a status or an outcome), `disposition` and `phone`."""
    leads = Lead.objects.filter(campaign=campaign).order_by("-id")
    show = asked.get("show", "")
    if show in Lead.Status.values:
        leads = leads.filter(status=show)
    elif show and show in Lead.Outcome.values:
        leads = leads.filter(status=Lead.Status.FINISHED, outcome=show)
    if disposition := asked.get("disposition", "").strip()[:40]:
        leads = leads.filter(disposition=disposition)
    if text := asked.get("phone", "").strip():
        try:
            phone = parse_possible_phone(text, campaign.organization.default_region).as_e164
        except InvalidPhone:
            return Lead.objects.none()
        leads = leads.filter(organization=campaign.organization_id, phone=phone)
    return leads


def page_of(leads: QuerySet[Lead], before: Any) -> tuple[list[Lead], int | None]:
    """Return a page of leads, newest first, and the id before which the next page begins, if there is one."""
    if (edge := read_id(before)) is not None:
        leads = leads.filter(pk__lt=edge)
    with transaction.atomic():
        prefer_index_plans()
        rows = list(leads[: PAGE + 1])
    return rows[:PAGE], rows[PAGE - 1].pk if len(rows) > PAGE else None


def export_pages(leads: QuerySet[Lead], zone: str) -> Iterator[list[list[Any]]]:
    """Yield the rows of an export, newest first, in pages. The data of a lead is one column, as JSON.

    Each page is a separate statement, so that a slow download holds no transaction. Ends after EXPORT_MOST rows.
    """
    here = ZoneInfo(zone)
    edge: int | None = None
    for _page in range(EXPORT_MOST // EXPORT_PAGE):
        left = leads if edge is None else leads.filter(pk__lt=edge)
        with transaction.atomic():
            prefer_index_plans()
            # as text, because parsing the phone numbers takes longer than everything else
            rows = list(left.values_list("pk", Cast("phone", TextField()), *_EXPORTED_FIELDS)[:EXPORT_PAGE])
        if not rows:
            return
        yield [_export_row(row, here) for row in rows]
        edge = rows[-1][0]


def _export_row(row: tuple[Any, ...], here: ZoneInfo) -> list[Any]:
    *values, due_at, finished_at, data = row
    finished = finished_at.astimezone(here).isoformat(timespec="seconds") if finished_at else ""
    return [*values, due_at.astimezone(here).isoformat(timespec="seconds"), finished, data]


_EXPORTED_FIELDS = (
    "external_id", "status", "outcome", "disposition", "notes", "attempts", "due_at", "finished_at", "data"
)  # fmt: skip
EXPORTED = (
    "id", "phone", "external_id", "status", "outcome", "disposition", "notes", "attempts", "due_at", "finished_at",
    "data",
)  # fmt: skip
