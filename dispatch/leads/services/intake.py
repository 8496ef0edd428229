"""Leads are written and scheduled: one, or thousands in a statement."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache, partial
from typing import Any, NamedTuple

import phonenumbers
from django.db import transaction

from dispatch.core import clock, events
from dispatch.core.events import SYSTEM, Actor
from dispatch.leads import schedule, sql
from dispatch.leads.models import Campaign
from dispatch.leads.schedule import Entry, ms
from dispatch.telephony.rules import why_not_callable


class NewLead(NamedTuple):
    """A lead to be. `phone`: as it came, read as the organization's region says when it has no +; `due_at`: aware,
    None is now; `external_id`: the client's own name for it, one of its kind in the campaign, or ""."""

    phone: str
    due_at: datetime | None = None
    lat: float | None = None
    lng: float | None = None
    customer: str = ""
    external_id: str = ""
    data: Mapping[str, Any] | None = None


class Accepted(NamedTuple):
    """What became of one: `error` is empty, or why it was not taken; `is_new` is False when the campaign had a
    lead of that external id already, which is then `id`."""

    id: int | None
    is_new: bool = True
    error: str = ""


def accept(campaign: Campaign, leads: Sequence[NewLead], *, actor: Actor = SYSTEM) -> list[Accepted]:
    """Writes those that can be called and schedules them after the commit; an answer for each, in order. Bad ones
    are named and the good ones kept. Appends one Event for all of them.

    Works also while Redis is gone: the reconciler schedules them when it is back."""
    organization = campaign.organization
    countries = tuple(organization.allowed_countries)
    now = clock.now()
    answers: list[Accepted | None] = []
    good: list[tuple[int, str, NewLead]] = []
    for position, lead in enumerate(leads):
        phone, error = callable_phone(lead.phone, organization.default_region, countries)
        if not error and (lead.lat is None) != (lead.lng is None):
            error = "a position needs both lat and lng"
        answers.append(Accepted(None, False, error) if error else None)
        if not error:
            good.append((position, phone, lead))
    if good:
        with transaction.atomic():
            _write(campaign, good, answers, now, actor)
    return [answer for answer in answers if answer is not None]


def _write(
    campaign: Campaign,
    good: Sequence[tuple[int, str, NewLead]],
    answers: list[Accepted | None],
    now: datetime,
    actor: Actor,
) -> None:
    ids = [row[0] for row in sql.rows(sql.NEXT_IDS, {"count": len(good)})]
    now_ms = ms(now)
    dues = [now_ms if lead.due_at is None else ms(lead.due_at) for _, _, lead in good]
    given = {
        "ids": sql.integers(ids),
        "phones": sql.texts(phone for _, phone, _ in good),
        "lats": [lead.lat for *_, lead in good],
        "lngs": [lead.lng for *_, lead in good],
        "customers": sql.texts(lead.customer for *_, lead in good),
        "externals": sql.texts(lead.external_id for *_, lead in good),
        "data": sql.texts(json.dumps(lead.data) if lead.data else "{}" for *_, lead in good),
        "dues": sql.integers(dues),
    }
    written = sql.rows(
        sql.INSERT, {**given, "organization": campaign.organization_id, "campaign": campaign.pk, "now": now}
    )
    new = {lead_id for (lead_id,) in written}
    known: dict[str, int] = {}
    if len(new) < len(good):
        externals = sql.texts(lead.external_id for *_, lead in good)
        known = dict(sql.rows(sql.BY_EXTERNAL_ID, {"campaign": campaign.pk, "externals": externals}))
    entries = []
    for lead_id, due_ms, (position, _, lead) in zip(ids, dues, good, strict=True):
        if lead_id in new:
            answers[position] = Accepted(lead_id)
            entries.append(Entry(campaign.pool_id, lead_id, 1, due_ms))
        else:
            answers[position] = Accepted(known.get(lead.external_id), False)
    if not entries:
        return
    if len(good) == 1:
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
    transaction.on_commit(partial(schedule.put, entries), robust=True)


def callable_phone(text: str, region: str, countries: tuple[str, ...]) -> tuple[str, str]:
    """(E.164, "") of a phone that may be called, else ("", why not)."""
    if len(text) == 12 and text.startswith("+1") and text[2:].isdigit() and text.isascii():
        # Of the North American numbers the area code tells the country, the kind and whether there is one at all.
        error = _area(text[:5], countries)
        return ("", error) if error else (text, "")
    try:
        phone = phonenumbers.format_number(
            phonenumbers.parse(text, region or None), phonenumbers.PhoneNumberFormat.E164
        )
    except phonenumbers.NumberParseException:
        return "", "not a phone number"
    why = why_not_callable(phone, countries)
    return ("", why) if why else (phone, "")


@lru_cache(maxsize=4096)
def _area(prefix: str, countries: tuple[str, ...]) -> str:
    if prefix[2] in "01":
        return "not a phone number"
    return why_not_callable(f"{prefix}2345678", countries) or ""
