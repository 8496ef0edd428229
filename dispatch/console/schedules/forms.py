"""The form of a schedule: fields instead of JSON for every kind, checked by the API's own serializer."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any
from zoneinfo import ZoneInfo

from django.http import HttpRequest
from rest_framework.exceptions import APIException

from accounts.models import Organization, time_zones
from accounts.permissions import ROLE_MAY
from dispatch.core import clock
from dispatch.core.problems import ProblemFormatter
from dispatch.jobs.models import ServiceType
from dispatch.leads.models import Campaign
from dispatch.outbox.models import Endpoint
from dispatch.schedules import kinds
from dispatch.schedules.models import Missed, Overlap, Schedule, Unit
from dispatch.schedules.rules import words
from dispatch.schedules.serializers import ScheduleFormSerializer, TimingSerializer, occurrences_of, preview_of

Choices = Callable[[Organization], list[tuple[str, str]]]
# How a timing is said: the field that decides, in the order of the form.
HOWS = (("once", "Once"), ("every", "Repeating"), ("cron", "By a cron expression"))
# What people ask for most, as cron expressions; they fill the field.
USUAL = (
    ("0 9 * * 1-5", "Every weekday at 09:00"),
    ("0 9 * * MON", "Every Monday at 09:00"),
    ("0 9 * * MON#1", "Every first Monday of the month at 09:00"),
    ("0 9 1 * *", "Every first of the month at 09:00"),
    ("0 17 L * *", "Every last day of the month at 17:00"),
)


@dataclass(frozen=True)
class Field:
    """One input. `type` is that of an HTML input, or textarea, json, select."""

    name: str
    label: str
    type: str = "text"
    required: bool = False
    help: str = ""
    choices: Choices | None = None
    wide: bool = False


def _services(organization: Organization) -> list[tuple[str, str]]:
    rows = ServiceType.objects.of(organization).filter(is_active=True)
    return list(rows.values_list("code", "name"))


def _campaigns(organization: Organization) -> list[tuple[str, str]]:
    return list(Campaign.objects.of(organization).order_by("name").values_list("code", "name"))


def _endpoints(organization: Organization) -> list[tuple[str, str]]:
    return [(name, name) for name in Endpoint.objects.of(organization).values_list("name", flat=True)]


def _urls(organization: Organization) -> list[tuple[str, str]]:
    return [("", "None: call the URL below"), *_endpoints(organization)]


def _priorities(organization: Organization) -> list[tuple[str, str]]:
    return [("normal", "Normal"), ("urgent", "Urgent"), ("emergency", "Emergency")]


def _methods(organization: Organization) -> list[tuple[str, str]]:
    return [("POST", "POST"), ("GET", "GET")]


PAYLOADS: dict[str, tuple[Field, ...]] = {
    "submission": (
        Field("customer_name", "Customer", required=True),
        Field("customer_phone", "Customer's phone", "tel", required=True),
        Field("service_type", "Service", "select", required=True, choices=_services),
        Field("priority", "Priority", "select", choices=_priorities),
        Field("address", "Address", required=True, wide=True),
        Field("notes", "Notes", "textarea", wide=True),
    ),
    "lead": (
        Field("campaign", "Campaign", "select", required=True, choices=_campaigns),
        Field("phone", "Phone", "tel", required=True),
        Field("customer", "On behalf of", help="For rate limits; empty: the campaign's."),
    ),
    "message": (
        Field("endpoint", "Endpoint", "select", required=True, choices=_endpoints),
        Field("type", "Type", required=True, help="As report.due"),
        Field("group", "Group", help="Messages of one group are delivered in order."),
        Field("payload", "Content (JSON)", "json", required=True, wide=True),
    ),
    "http": (
        Field("endpoint", "Endpoint", "select", choices=_urls, help="With its headers and signature."),
        Field("url", "URL", "url", wide=True),
        Field("method", "Method", "select", choices=_methods),
        Field("body", "Body (JSON)", "json", wide=True),
    ),
}
_TIMING = ("trigger_at", "every", "unit", "cron", "time_zone", "starts_at", "ends_at", "max_occurrences")
_LIMITS = ("starts_at", "ends_at", "max_occurrences")
_RULES = ("missed", "missed_after_s", "overlap", "retry_schedule_s")


@dataclass
class ScheduleForm:
    """What stands in the form, and what is wrong with it. `values` are strings by the names of the inputs: those
    of the payload begin with "p-"."""

    kind: str
    values: dict[str, str]
    organization: Organization
    role: str
    schedule: Schedule | None = None
    errors: dict[str, str] = field(default_factory=dict)
    cleaned: dict[str, Any] = field(default_factory=dict)

    @property
    def inputs(self) -> Iterator[dict[str, Any]]:
        """The inputs of the payload, for the template."""
        for one in PAYLOADS.get(self.kind, ()):
            name = f"p-{one.name}"
            choices = one.choices(self.organization) if one.choices else None
            yield {
                "field": one, "name": name, "value": self.values.get(name, ""), "choices": choices,
                "error": self.errors.get(name, ""),
            }  # fmt: skip

    @property
    def how(self) -> str:
        return self.values.get("how") or "every"

    def is_valid(self) -> bool:
        """Checks it as the API would; `cleaned` is for `services.managing`, `errors` by the names of the
        inputs."""
        body = self._body()
        if self.errors:
            return False
        serializer = ScheduleFormSerializer(
            self.schedule, data=body, partial=self.schedule is not None, context=self._context()
        )
        try:
            serializer.is_valid(raise_exception=True)
        except APIException as error:
            self._tell(error)
            return False
        self.cleaned = dict(serializer.validated_data)
        return True

    def preview(self) -> dict[str, Any] | None:
        """Words and next times of the timing as it stands; None with `errors` when it cannot be read."""
        if self.schedule is not None and self._keeps_timing():
            return {"words": words.describe(self.schedule.timing), "next": occurrences_of(self.schedule)}
        serializer = TimingSerializer(data=self._timing(), context=self._context())
        try:
            serializer.is_valid(raise_exception=True)
        except APIException as error:
            self._tell(error)
            return None
        return preview_of(serializer.validated_data, self.schedule.taken if self.schedule else 0)

    def _context(self) -> dict[str, Any]:
        return {"request": self, "may": partial(_may, self.role)}

    def _keeps_timing(self) -> bool:
        """Whether it still says when as the schedule does. The inputs have no seconds, and cannot name the second
        of two equal hours: what was not touched must not become another moment by being shown."""
        if self.schedule is None:
            return False
        shown = _when_of(self.schedule)
        return all(self.values.get(name, "").strip() == shown[name] for name in ("how", *_said(shown["how"])))

    def _timing(self) -> dict[str, Any]:
        if self._keeps_timing():
            return {}
        said = {name: self.values.get(name, "").strip() for name in _TIMING}
        body: dict[str, Any] = {name: said[name] for name in _said(self.how) if said[name]}
        body["time_zone"] = said["time_zone"] or self.organization.time_zone
        if self.schedule is not None:  # what was emptied is taken away
            body = dict.fromkeys(_LIMITS) | body
        return body

    def _body(self) -> dict[str, Any]:
        body = {
            "name": self.values.get("name", ""),
            "kind": self.kind,
            "payload": self._payload(),
            **self._timing(),
        }
        for name in _RULES:
            if value := self.values.get(name, "").strip():
                body[name] = [part.strip() for part in value.split(",")] if name == "retry_schedule_s" else value
        if self.schedule is not None and not self.values.get("retry_schedule_s", "").strip():
            body["retry_schedule_s"] = []
        return body

    def _payload(self) -> dict[str, Any]:
        # What the form does not show of a payload (a position, further fields) is kept, and what was not touched.
        shown = {one.name for one in PAYLOADS.get(self.kind, ())}
        before = self.schedule.payload if self.schedule is not None and self.schedule.kind == self.kind else None
        payload = {name: value for name, value in (before or {}).items() if name not in shown}
        for one in PAYLOADS.get(self.kind, ()):
            value = self.values.get(f"p-{one.name}", "").strip()
            if before is not None and value == self._shown(one, before):
                payload |= {one.name: before[one.name]} if one.name in before else {}
                continue
            if not value:
                continue
            if one.type != "json":
                payload[one.name] = value
                continue
            try:
                payload[one.name] = json.loads(value)
            except ValueError as error:
                self.errors[f"p-{one.name}"] = f"This is no JSON: {error}."
        return payload

    def _shown(self, one: Field, payload: Mapping[str, Any]) -> str:
        """What the input shows of this payload; a list that has nothing to show shows its first choice."""
        said = _input_of(one, payload)
        if said or one.choices is None or one.required:
            return said
        return one.choices(self.organization)[0][0]

    def _tell(self, error: APIException) -> None:
        context: Any = {}
        for one in ProblemFormatter(error, context, error).run()["errors"]:
            path = str(one["field"] or "")
            name = f"p-{path.split('.')[1]}" if path.startswith("payload.") else path.split(".")[0]
            known = {f"p-{item.name}" for item in PAYLOADS.get(self.kind, ())} | {"name", *_TIMING, *_RULES}
            if name in known:
                self.errors.setdefault(name, one["detail"])
            else:
                self.errors[""] = f"{path}: {one['detail']}".strip(": ")


def empty(request: HttpRequest, kind: str) -> ScheduleForm:
    """A new schedule's form, with what most people want filled in."""
    organization: Organization = request.organization
    tomorrow = clock.now().astimezone(ZoneInfo(organization.time_zone)) + timedelta(days=1)
    values = {
        "how": "every", "every": "1", "unit": "day", "starts_at": f"{tomorrow:%Y-%m-%d}T09:00",
        "time_zone": organization.time_zone, "missed": "last",
    }  # fmt: skip
    return ScheduleForm(kind, values, organization, request.role)


def of_schedule(request: HttpRequest, schedule: Schedule) -> ScheduleForm:
    """The form of a schedule as it is."""
    values = {
        **_when_of(schedule),
        "name": schedule.name,
        "missed": schedule.missed,
        "missed_after_s": str(schedule.missed_after_s),
        "overlap": schedule.overlap,
        "retry_schedule_s": ", ".join(map(str, schedule.retry_schedule_s)),
        "version": str(schedule.version),
    }
    for one in PAYLOADS.get(schedule.kind, ()):
        values[f"p-{one.name}"] = _input_of(one, schedule.payload)
    return ScheduleForm(schedule.kind, values, request.organization, request.role, schedule)


def _input_of(one: Field, payload: Mapping[str, Any]) -> str:
    value = payload.get(one.name)
    if value is None:
        return ""
    return json.dumps(value, ensure_ascii=False) if one.type == "json" else str(value).strip()


def _when_of(schedule: Schedule) -> dict[str, str]:
    """How the inputs say when a schedule runs."""
    zone = ZoneInfo(schedule.time_zone)
    values = {
        "how": "once" if schedule.trigger_at else "cron" if schedule.cron else "every",
        "every": str(schedule.every or ""),
        "unit": schedule.unit,
        "cron": schedule.cron,
        "time_zone": schedule.time_zone,
        "max_occurrences": str(schedule.max_occurrences or ""),
    }
    for name in ("trigger_at", "starts_at", "ends_at"):
        moment = getattr(schedule, name)
        values[name] = f"{moment.astimezone(zone):%Y-%m-%dT%H:%M}" if moment else ""
    return values


def _said(how: str) -> tuple[str, ...]:
    """The inputs that count for this way of saying when."""
    if how == "once":
        return ("trigger_at", "time_zone")
    return (*(("every", "unit") if how == "every" else ("cron",)), *_LIMITS, "time_zone")


def posted(request: HttpRequest, kind: str, schedule: Schedule | None = None) -> ScheduleForm:
    """What was sent."""
    values = {name: str(value) for name, value in request.POST.items()}
    return ScheduleForm(kind, values, request.organization, request.role, schedule)


def offered() -> dict[str, Any]:
    """The choices that every form has."""
    return {
        "hows": HOWS,
        "units": Unit.choices,
        "usual": USUAL,
        "missed_choices": Missed.choices,
        "overlap_choices": Overlap.choices,
        "zones": sorted(time_zones()),
        "kinds": [kind for kind in kinds.all_kinds() if kind.name in PAYLOADS],
    }


def _may(role: str, scope: str) -> bool:
    allowed: Mapping[str, frozenset[str]] = ROLE_MAY
    return scope in allowed.get(role, frozenset())
