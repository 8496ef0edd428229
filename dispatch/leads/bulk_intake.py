"""Accept thousands of leads in one request.

The entries are parsed directly, because a serializer would take longer than everything else.

    {"campaign": "spring", "leads": [{"phone": "+16025550134", "due_at": "2026-11-20T18:00:00Z"}, …]}

An entry has the fields of `POST /leads/`, without the campaign. Valid entries are added, and invalid entries are
reported.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from datetime import datetime, time
from typing import Any

from django.core.exceptions import ValidationError
from django.core.validators import validate_slug
from rest_framework.exceptions import ParseError
from rest_framework.utils.json import strict_constant

from dispatch.core.api.parsers import (
    TOO_DEEP,
    LargeJSONParser,
    PlainJSONParser,
    find_unstorable,
    is_storable,
    is_too_deep,
)
from dispatch.core.events import Actor
from dispatch.core.languages import gettext as _
from dispatch.core.languages import mark
from dispatch.leads.models import Campaign
from dispatch.leads.models.campaigns import check_due_at, check_purpose
from dispatch.leads.models.consents import check_given_at
from dispatch.leads.services import intake
from dispatch.leads.services.consents import DEFAULT_PURPOSE, NewConsent
from dispatch.leads.services.intake import NewLead

MAX_ENTRIES = 10_000
FIELDS = frozenset(
    {"phone", "due_at", "lat", "lng", "customer", "external_id", "data", "contact_from", "contact_until"}
) | frozenset({"consent_at", "consent_source", "consent_purpose", "consent_words", "consent_proof"})
MAX_WORDS = 4000
NOT_LOCAL = mark("Must be the person's local time, without a time zone, such as 09:00.")


class InvalidEntry(ValueError):
    """An entry is invalid. Its arguments are the field and the error."""


class _TooDeep:
    """Take the place of an entry that is nested too deeply."""


class _EntriesParser(PlainJSONParser):
    """Check the body without its entries, each of which `parse_entry` checks."""

    def load(self, body: bytes, media_type: str | None, parser_context: Mapping[str, Any] | None) -> Any:
        try:
            return super().load(body, media_type, parser_context)
        except ParseError as error:
            try:  # Python converts no integer of thousands of digits, so one of them would refuse all entries.
                return json.loads(body, parse_int=_integer, parse_constant=strict_constant)
            except ValueError:
                raise error from None

    def check_depth(self, value: Any) -> None:
        if not is_too_deep(value):
            return
        super().check_depth(_without_entries(value))
        if isinstance(value.get("leads"), list):
            value["leads"] = [_TooDeep() if is_too_deep(entry) else entry for entry in value["leads"]]

    def check(self, value: Any) -> None:
        super().check(_without_entries(value))


def _without_entries(value: Any) -> Any:
    return {**value, "leads": None} if isinstance(value, dict) and isinstance(value.get("leads"), list) else value


def _integer(digits: str) -> int | float:
    """Convert an integer as JSON writes it. One beyond Python's limit is infinite, which is no storable number."""
    try:
        return int(digits)
    except ValueError:
        return math.inf


class EntriesParser(LargeJSONParser):
    """Parse a body like LargeJSONParser, but tolerate invalid entries."""

    parser_class = _EntriesParser


def accept_entries(campaign: Campaign, entries: Sequence[Any], *, actor: Actor) -> dict[str, Any]:
    """Add the valid entries, and return the response body: counts, and a result for each entry in order.

    `results`: {"line": from 1, "id": …} for a new lead, with "is_new": false for an existing lead, and also with
    "is_duplicate": true if that is an open lead to the same phone; {"line": …, "field": …, "error": …} for an
    invalid entry.
    """
    results: list[dict[str, Any]] = [{}] * len(entries)
    valid: list[tuple[int, NewLead]] = []
    for position, entry in enumerate(entries):
        try:
            valid.append((position, parse_entry(entry)))
        except InvalidEntry as error:
            field, problem = error.args
            results[position] = {"line": position + 1, "field": field, "error": problem}
    accepted = known = duplicates = 0
    outcomes = intake.accept_leads(campaign, [lead for _, lead in valid], actor=actor)
    for (position, _lead), outcome in zip(valid, outcomes, strict=True):
        if outcome.error:
            results[position] = {"line": position + 1, "field": field_of(outcome.error), "error": outcome.error}
        elif outcome.is_new:
            accepted += 1
            results[position] = {"line": position + 1, "id": outcome.id}
        elif outcome.is_duplicate:
            duplicates += 1
            results[position] = {"line": position + 1, "id": outcome.id, "is_new": False, "is_duplicate": True}
        else:
            known += 1
            results[position] = {"line": position + 1, "id": outcome.id, "is_new": False}
    return {
        "accepted": accepted,
        "known": known,
        "duplicates": duplicates,
        "rejected": len(entries) - accepted - known - duplicates,
        "results": results,
    }


def field_of(error: str) -> str:
    """Return the field that an error of `intake` is about."""
    return "lat" if "position" in error else "phone"


def parse_entry(entry: Any) -> NewLead:
    """Parse one entry. Raises InvalidEntry."""
    if isinstance(entry, _TooDeep):
        raise InvalidEntry("", TOO_DEEP)
    if not isinstance(entry, dict):
        raise InvalidEntry("", _("Must be an object with a phone."))
    if not is_storable(entry) and (problem := find_unstorable(entry)):
        raise InvalidEntry(*problem)
    if not entry.keys() <= FIELDS:
        raise InvalidEntry(
            sorted(entry.keys() - FIELDS)[0], (f"Unknown field. Allowed: {', '.join(sorted(FIELDS))}.")
        )
    phone = entry.get("phone")
    if not isinstance(phone, str) or not phone or len(phone) > 32:
        raise InvalidEntry("phone", _("Required. Must be text of at most 32 characters."))
    if len(entry) == 1:
        return NewLead(phone)
    due = entry.get("due_at")
    return NewLead(
        phone,
        None if due is None else _due(due),
        _number(entry, "lat", 90),
        _number(entry, "lng", 180),
        _customer(entry),
        _text(entry, "external_id", 120),
        _data(entry),
        *_contact_hours(entry),
        _consent(entry),
    )


def _consent(entry: dict[str, Any]) -> NewConsent | None:
    """Parse the fields of a consent. Without any of them, there is none."""
    if not any(entry.get(name) for name in FIELDS if name.startswith("consent_")):
        return None
    if not entry.get("consent_at") or not _text(entry, "consent_source", 80):
        raise InvalidEntry("consent_at", _("Enter consent_at (when it was given) and consent_source (how)."))
    given_at = _moment(entry["consent_at"], "consent_at")
    try:
        check_given_at(given_at)
    except ValidationError as error:
        raise InvalidEntry("consent_at", str(error.messages[0])) from None
    purpose = _text(entry, "consent_purpose", 40) or DEFAULT_PURPOSE
    try:
        check_purpose(purpose)
    except ValidationError as error:
        raise InvalidEntry("consent_purpose", str(error.messages[0])) from None
    words, proof = _text(entry, "consent_words", MAX_WORDS), _text(entry, "consent_proof", 2000)
    return NewConsent(given_at, _text(entry, "consent_source", 80), purpose, words, proof)


def _due(text: Any) -> datetime:
    moment = _moment(text, "due_at")
    try:
        check_due_at(moment)
    except ValidationError as error:
        raise InvalidEntry("due_at", str(error.messages[0])) from None
    return moment


def _moment(text: Any, field: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except (TypeError, ValueError):
        raise InvalidEntry(field, _("Must be a time such as 2026-11-20T18:00:00Z.")) from None
    if moment.tzinfo is None:
        raise InvalidEntry(field, _("Must include a time zone, as in 2026-11-20T18:00:00Z."))
    return moment


def _contact_hours(entry: dict[str, Any]) -> tuple[time | None, time | None]:
    names = ("contact_from", "contact_until")
    if not any(entry.get(name) for name in names):
        return None, None
    return _time(entry, names[0]), _time(entry, names[1])


def _time(entry: dict[str, Any], name: str) -> time:
    try:
        hour = time.fromisoformat(entry.get(name) or "")
    except (TypeError, ValueError):
        raise InvalidEntry(name, _("Contact hours need both times, such as 09:00.")) from None
    if hour.tzinfo is not None:
        raise InvalidEntry(name, _(NOT_LOCAL))
    return hour.replace(second=0, microsecond=0)


def _number(entry: dict[str, Any], name: str, most: float) -> float | None:
    value = entry.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not -most <= value <= most:
        raise InvalidEntry(name, _("Must be a number from -{most} to {most}.").format(most=most))
    return float(value)


def _customer(entry: dict[str, Any]) -> str:
    customer = _text(entry, "customer", 64)
    try:
        if customer:
            validate_slug(customer)
    except ValidationError:
        raise InvalidEntry("customer", _("Use only letters, digits, underscores and hyphens.")) from None
    return customer


def _text(entry: dict[str, Any], name: str, longest: int) -> str:
    """Return the text without the blanks around it, as a serializer does."""
    value = entry.get(name)
    if value is None:
        return ""
    text = value.strip() if isinstance(value, str) else None
    if text is None or len(text) > longest or "\x00" in text:
        raise InvalidEntry(name, _("Must be text of at most {most} characters.").format(most=longest))
    return text


def _data(entry: dict[str, Any]) -> dict[str, Any] | None:
    value = entry.get("data")
    if value is not None and not isinstance(value, dict):
        raise InvalidEntry("data", "Must be an object.")
    return value
