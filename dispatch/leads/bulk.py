"""Thousands of leads in one request: read by hand, for a serializer would take longer than all the rest.

    {"campaign": "spring", "leads": [{"phone": "+16025550134", "due_at": "2026-11-20T18:00:00Z"}, …]}

A line is what `POST /leads/` takes, without the campaign. Bad lines are named and the good ones kept."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from django.utils import timezone

from dispatch.core.events import Actor
from dispatch.leads.models import Campaign
from dispatch.leads.services import intake
from dispatch.leads.services.intake import NewLead

MOST = 10_000
FIELDS = frozenset({"phone", "due_at", "lat", "lng", "customer", "external_id", "data"})
FARTHEST = timedelta(days=366 * 5)


class BadLine(ValueError):
    """(field, what is wrong with it)"""


def accept(campaign: Campaign, lines: Sequence[Any], *, actor: Actor) -> dict[str, Any]:
    """Writes the good lines; the answer's body: counts, and a result for each line in order.

    `results`: {"line": from 1, "id": …} for a new lead, with "is_new": false for one that was there; for a bad
    line {"line": …, "field": …, "error": …}."""
    results: list[dict[str, Any]] = [{}] * len(lines)
    good: list[tuple[int, NewLead]] = []
    for place, line in enumerate(lines):
        try:
            good.append((place, read(line)))
        except BadLine as error:
            field, words = error.args
            results[place] = {"line": place + 1, "field": field, "error": words}
    accepted = known = 0
    answers = intake.accept(campaign, [lead for _, lead in good], actor=actor)
    for (place, _), answer in zip(good, answers, strict=True):
        if answer.error:
            results[place] = {"line": place + 1, "field": field_of(answer.error), "error": answer.error}
        elif answer.is_new:
            accepted += 1
            results[place] = {"line": place + 1, "id": answer.id}
        else:
            known += 1
            results[place] = {"line": place + 1, "id": answer.id, "is_new": False}
    return {
        "accepted": accepted, "known": known, "rejected": len(lines) - accepted - known, "results": results,
    }  # fmt: skip


def field_of(error: str) -> str:
    """Which field it is that `intake` found wrong."""
    return "lat" if "position" in error else "phone"


def read(line: Any) -> NewLead:
    """One line as a lead to be. Raises BadLine."""
    if not isinstance(line, dict):
        raise BadLine("", "A line is an object with a phone.")
    if not line.keys() <= FIELDS:
        raise BadLine(sorted(line.keys() - FIELDS)[0], f"There are only {', '.join(sorted(FIELDS))}.")
    phone = line.get("phone")
    if not isinstance(phone, str) or not phone or len(phone) > 32:
        raise BadLine("phone", "A phone is needed, as text.")
    if len(line) == 1:
        return NewLead(phone)
    due = line.get("due_at")
    return NewLead(
        phone,
        None if due is None else _moment(due),
        _number(line, "lat", 90),
        _number(line, "lng", 180),
        _text(line, "customer", 64),
        _text(line, "external_id", 120),
        _data(line),
    )


def _moment(text: Any) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except (TypeError, ValueError):
        raise BadLine("due_at", "A time is as 2026-11-20T18:00:00Z.") from None
    if moment.tzinfo is None:
        raise BadLine("due_at", "A time needs its zone, as 2026-11-20T18:00:00Z.")
    if moment > timezone.now() + FARTHEST:
        raise BadLine("due_at", "At most five years from now.")
    return moment


def _number(line: dict[str, Any], name: str, most: float) -> float | None:
    value = line.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not -most <= value <= most:
        raise BadLine(name, f"A number from -{most} to {most}.")
    return float(value)


def _text(line: dict[str, Any], name: str, longest: int) -> str:
    value = line.get(name)
    if value is None:
        return ""
    if not isinstance(value, str) or len(value) > longest or "\x00" in value:
        raise BadLine(name, f"Text of at most {longest} characters.")
    return value


def _data(line: dict[str, Any]) -> dict[str, Any] | None:
    value = line.get("data")
    if value is not None and not isinstance(value, dict):
        raise BadLine("data", "An object.")
    return value
