"""Write and schedule leads: a single lead, or thousands per statement."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime, time
from functools import lru_cache, partial
from typing import Any, NamedTuple

from django.db import transaction

from accounts import limits
from dispatch.core import clock, events
from dispatch.core.api.problems import Conflict
from dispatch.core.db.prepared import prefer_index_plans
from dispatch.core.events import SYSTEM, Actor
from dispatch.core.phone_numbers import InvalidPhone, parse_possible_phone
from dispatch.leads import redis_queue, sql
from dispatch.leads.models import Campaign, Lead
from dispatch.leads.redis_queue import ScheduleEntry, to_ms
from dispatch.leads.services import consents
from dispatch.leads.services.consents import NewConsent
from dispatch.telephony.rules import why_not_callable


class NewLead(NamedTuple):
    """A lead to add.

    `phone`: as entered; without a +, the organization's region applies. `due_at`: aware; None for now.
    `external_id`: the client's own ID for it, unique in the campaign, or "". `contact_from`, `contact_until`: both
    or neither; local hours to which the person limits calls. `consent`: what the person agreed to, if known.
    """

    phone: str
    due_at: datetime | None = None
    lat: float | None = None
    lng: float | None = None
    customer: str = ""
    external_id: str = ""
    data: Mapping[str, Any] | None = None
    contact_from: time | None = None
    contact_until: time | None = None
    consent: NewConsent | None = None


class DuplicateLead(Conflict):
    """409: the campaign has an open lead to this phone, and does not allow duplicates."""

    default_code = "duplicate_lead"

    def __init__(self, lead_id: int | None) -> None:
        super().__init__("This campaign already has an open lead to this phone.", lead=lead_id)


class Accepted(NamedTuple):
    """The result for one lead.

    `error`: why it was rejected, or "". `is_new` is False if the campaign already had a lead with that external id
    or, with `is_duplicate`, an open lead to that phone; `id` is then the id of that lead.
    """

    id: int | None
    is_new: bool = True
    error: str = ""
    is_duplicate: bool = False


def accept_leads(campaign: Campaign, leads: Sequence[NewLead], *, actor: Actor = SYSTEM) -> list[Accepted]:
    """Write the valid leads and schedule them after the commit. Return a result for each lead, in order.

    Invalid leads are reported, and do not affect the valid ones. Appends one Event for all of them. Unless the
    campaign allows duplicates, a phone with an open lead is left out, even if two concurrent requests contain it.

    Works without Redis, too: the reconciler schedules the leads when Redis is back. Raises LimitReached.
    """
    _check_limit(campaign.organization_id, len(leads))
    organization = campaign.organization
    countries = tuple(organization.allowed_countries)
    now = clock.now()
    results: list[Accepted | None] = []
    valid: list[tuple[int, str, NewLead]] = []
    for position, lead in enumerate(leads):
        phone, error = callable_phone(lead.phone, organization.default_region, countries)
        if not error and (lead.lat is None) != (lead.lng is None):
            error = "a position needs both lat and lng"
        results.append(Accepted(None, False, error) if error else None)
        if not error:
            valid.append((position, phone, lead))
    if valid:
        with transaction.atomic():
            _write_leads(campaign, valid, results, now, actor)
    return [result for result in results if result is not None]


def _check_limit(organization_id: int, adding: int) -> None:
    def count(most: int) -> int:
        campaigns = list(Campaign.objects.of(organization_id).values_list("pk", flat=True))
        still_open = Lead.objects.filter(
            campaign__in=campaigns, status__in=(Lead.Status.BACKLOG, Lead.Status.PROCESSING)
        )
        return still_open.order_by()[:most].count()

    limits.check_headroom(organization_id, "leads", adding, count)


def _write_leads(
    campaign: Campaign,
    valid: Sequence[tuple[int, str, NewLead]],
    results: list[Accepted | None],
    now: datetime,
    actor: Actor,
) -> None:
    prefer_index_plans()
    if len(valid) > 1 and not campaign.allows_duplicates:
        sql.fetch_all(sql.LOCK_INTAKE, {"campaign": campaign.pk})
    ids = [row[0] for row in sql.fetch_all(sql.NEXT_IDS, {"count": len(valid)})]
    now_ms = to_ms(now)
    dues = [now_ms if lead.due_at is None else to_ms(lead.due_at) for _, _, lead in valid]
    columns = {
        "ids": sql.integers(ids),
        "phones": sql.texts(phone for _, phone, _ in valid),
        "lats": [lead.lat for *_, lead in valid],
        "lngs": [lead.lng for *_, lead in valid],
        "customers": sql.texts(lead.customer for *_, lead in valid),
        "externals": sql.texts(lead.external_id for *_, lead in valid),
        "data": sql.texts(json.dumps(lead.data) if lead.data else "{}" for *_, lead in valid),
        "dues": sql.integers(dues),
        "contact_from": [lead.contact_from for *_, lead in valid],
        "contact_until": [lead.contact_until for *_, lead in valid],
    }
    written = sql.fetch_all(
        sql.INSERT,
        {
            **columns,
            "organization": campaign.organization_id,
            "campaign": campaign.pk,
            "one_per_phone": not campaign.allows_duplicates,
            "now": now,
        },
    )
    new = {lead_id for (lead_id,) in written}
    known: dict[str, int] = {}
    open_leads: dict[str, int] = {}
    if len(new) < len(valid):
        left_out = {
            "organization": campaign.organization_id,
            "campaign": campaign.pk,
            "externals": columns["externals"],
            "phones": columns["phones"],
        }
        known = dict(sql.fetch_all(sql.BY_EXTERNAL_ID, left_out))
        open_leads = dict(sql.fetch_all(sql.OPEN_BY_PHONE, left_out))
    consents.record_consents(
        campaign.organization_id,
        [(phone, lead.consent) for _, phone, lead in valid if lead.consent is not None],
        actor=actor,
    )
    entries = []
    for lead_id, due_ms, (position, phone, lead) in zip(ids, dues, valid, strict=True):
        if lead_id in new:
            results[position] = Accepted(lead_id)
            entries.append(ScheduleEntry(campaign.pool_id, lead_id, 1, due_ms))
        elif lead.external_id in known:
            results[position] = Accepted(known[lead.external_id], False)
        else:
            results[position] = Accepted(open_leads.get(phone), False, is_duplicate=True)
    if not entries:
        return
    if len(valid) == 1:
        events.append(
            campaign.organization_id, "lead.created", entries[0].lead_id, actor=actor, campaign_id=campaign.pk
        )
    else:
        first, last = entries[0].lead_id, entries[-1].lead_id
        events.append(
            campaign.organization_id,
            "campaign.leads_added",
            campaign.pk,
            actor=actor,
            count=len(entries),
            first=first,
            last=last,
        )
    transaction.on_commit(partial(redis_queue.enqueue, entries), robust=True)


def callable_phone(text: str, region: str, countries: tuple[str, ...]) -> tuple[str, str]:
    """Return (E.164, "") for a phone that may be called, else ("", the reason why not)."""
    if len(text) == 12 and text.startswith("+1") and text[2:].isdigit() and text.isascii():
        # For North American numbers, the area code determines the country, the type, and whether the number
        # exists.
        error = _area_problem(text[:5], countries)
        return ("", error) if error else (text, "")
    try:
        phone = parse_possible_phone(text, region).as_e164
    except InvalidPhone:
        return "", "not a phone number"
    why = why_not_callable(phone, countries)
    return ("", why) if why else (phone, "")


@lru_cache(maxsize=4096)
def _area_problem(prefix: str, countries: tuple[str, ...]) -> str:
    if prefix[2] in "01":
        return "not a phone number"
    return why_not_callable(f"{prefix}2345678", countries) or ""
