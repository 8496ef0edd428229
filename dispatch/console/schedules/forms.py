"""The schedule form: fields instead of JSON for every kind of schedule, validated by the API's serializer."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any
from zoneinfo import ZoneInfo

from django.http import HttpRequest
from django.utils.text import normalize_newlines
from rest_framework.exceptions import APIException
from rest_framework.serializers import BaseSerializer

from accounts.auth.permissions import ROLE_MAY
from accounts.models import Organization, time_zones
from dispatch.console.schedules.payload_fields import PAYLOADS, Field
from dispatch.core import clock
from dispatch.core.api.parsers import load_json
from dispatch.core.api.problems import ProblemFormatter
from dispatch.core.ids import read_id
from dispatch.core.languages import gettext as _
from dispatch.core.languages import mark
from dispatch.schedules import kinds
from dispatch.schedules.api.serializers import RunNowSerializer, ScheduleFormSerializer
from dispatch.schedules.api.timings import TimingSerializer, occurrences_of, preview_of
from dispatch.schedules.models import ConcurrencyLimit, ExclusionCalendar, Missed, Overlap, Schedule, Unit
from dispatch.schedules.rules import descriptions
from dispatch.schedules.services.anchors import anchor_after

# Kinds of timing by the field that decides, in the order of the form.
TIMINGS = (
    ("once", mark("Once")), ("every", mark("Repeating")), ("cron", mark("Cron expression")),
    ("rrule", mark("Recurrence rule")),
)  # fmt: skip
# Common cron expressions, suggested for the field.
USUAL = (
    ("0 9 * * 1-5", mark("Every weekday at 09:00")),
    ("0 9 * * MON", mark("Every Monday at 09:00")),
    ("0 9 * * MON#1", mark("Every first Monday of the month at 09:00")),
    ("0 9 1 * *", mark("The first day of every month at 09:00")),
    ("0 17 L * *", mark("The last day of every month at 17:00")),
)


# Common recurrence rules.
USUAL_RULES = (
    ("FREQ=MONTHLY;BYDAY=-1FR", mark("The last Friday of every month")),
    ("FREQ=WEEKLY;INTERVAL=2;BYDAY=MO", mark("Every second Monday")),
    ("FREQ=MONTHLY;BYDAY=MO,TU,WE,TH,FR;BYSETPOS=-1", mark("The last weekday of every month")),
    ("FREQ=DAILY;BYHOUR=9,13,17;BYMINUTE=0", mark("Every day at 09:00, 13:00 and 17:00")),
)
_TIMING = ("trigger_at", "every", "unit", "cron", "rrule", "time_zone", "starts_at", "ends_at", "max_occurrences",
           "exclude_calendars")  # fmt: skip
_LIMITS = ("starts_at", "ends_at", "max_occurrences", "exclude_calendars")
# A select offers no more concurrency limits than this.
MAX_LIMITS = 500
_MOMENTS = ("trigger_at", "starts_at", "ends_at")
_RULES = ("missed", "missed_after_s", "overlap", "jitter_s", "retry_schedule_s", "concurrency_key")


@dataclass
class ScheduleForm:
    """The form's values and errors. `values` are strings by input name; names of the payload begin with "p-".

    `refusal` says why nothing was saved although the values are valid.
    """

    kind: str
    values: dict[str, str]
    organization: Organization
    role: str
    schedule: Schedule | None = None
    errors: dict[str, str] = field(default_factory=dict)
    cleaned: dict[str, Any] = field(default_factory=dict)
    refusal: str = ""

    @property
    def inputs(self) -> Iterator[dict[str, Any]]:
        """Yield the inputs of the payload for the template."""
        for item in PAYLOADS.get(self.kind, ()):
            name = f"p-{item.name}"
            choices = item.choices(self.organization) if item.choices else None
            yield {
                "field": item, "name": name, "value": self.values.get(name, ""), "choices": choices,
                "error": self.errors.get(name, ""),
            }  # fmt: skip

    @property
    def carried(self) -> list[tuple[str, str]]:
        """Return what was entered for other kinds, in case the person chooses one of them again."""
        names = {f"p-{item.name}" for fields in PAYLOADS.values() for item in fields}
        names -= {f"p-{item.name}" for item in PAYLOADS.get(self.kind, ())}
        return [(name, self.values[name]) for name in sorted(names) if self.values.get(name)]

    @property
    def calendars(self) -> list[dict[str, Any]]:
        """Return the exclusion calendars of the organization for the template."""
        chosen = self.values.get("exclude_calendars", "").split(",")
        rows = ExclusionCalendar.objects.of(self.organization).order_by("name").values_list("pk", "name")
        return [{"pk": pk, "name": name, "is_chosen": str(pk) in chosen} for pk, name in rows]

    @property
    def concurrency_limits(self) -> list[tuple[str, int]]:
        """Return the key and the number of runs of each concurrency limit of the organization."""
        limits = ConcurrencyLimit.objects.of(self.organization).values_list("key", "max_runs")
        offered = dict(limits.order_by("key")[:MAX_LIMITS])
        chosen = self.values.get("concurrency_key", "")
        if chosen not in offered:  # saving the form must not remove it
            offered.update(limits.filter(key=chosen))
        return list(offered.items())

    @property
    def how(self) -> str:
        return self.values.get("how") or "every"

    def is_valid(self) -> bool:
        """Validate as the API does. Sets `cleaned` for `services.schedules`, or `errors` by input name."""
        body = self._body()
        if self.errors:
            return False
        serializer = ScheduleFormSerializer(
            self.schedule, data=body, partial=self.schedule is not None, context=self._context()
        )
        return self._accept(serializer)

    def is_payload_valid(self) -> bool:
        """Validate only the payload, for one run, as the API does. Sets `cleaned`, or `errors` by input name."""
        payload = self._payload()
        if self.errors:
            return False
        serializer = RunNowSerializer(
            data={"payload": payload, "note": self.values.get("note", "")},
            context={**self._context(), "schedule": self.schedule},
        )
        return self._accept(serializer)

    def _accept(self, serializer: BaseSerializer) -> bool:
        """Set `cleaned` to what the serializer accepts, or `errors`. Return whether it does."""
        try:
            serializer.is_valid(raise_exception=True)
        except APIException as error:
            self._add_errors(error)
            return False
        self.cleaned = dict(serializer.validated_data)
        return True

    def show_current(self, schedule: Schedule) -> None:
        """Show the schedule as it is now, with what the person entered, for another attempt.

        The timing is one value: if any part of it was entered, all of it is kept.
        """
        seen = self._seen()
        now = ScheduleForm(schedule.kind, {}, self.organization, self.role, schedule).load_values()
        entered = {name for name in now if name in self.values and self._differs(name, seen)} - {"version", "seen"}
        timing = set(_relevant_inputs(seen.get("how", "")))
        kept = entered | {"how", *_TIMING} if entered & {"how", *timing} else entered - set(_TIMING)
        self.schedule, self.kind = schedule, schedule.kind
        self.values |= {name: value for name, value in now.items() if name not in kept}

    def load_values(self) -> dict[str, str]:
        """Set `values` to the schedule's, as the inputs show them. `seen` contains them for a later comparison."""
        assert self.schedule is not None
        self.values = _values_of(self.schedule)
        for item in PAYLOADS.get(self.kind, ()):
            self.values[f"p-{item.name}"] = self._shown(item, self.schedule.payload)
        self.values |= {"seen": json.dumps(self.values), "version": str(self.schedule.version)}
        return self.values

    def _seen(self) -> dict[str, Any]:
        """Return the values that the person saw before entering theirs; empty for a page without them."""
        try:
            seen = json.loads(self.values.get("seen", ""))
        except (ValueError, RecursionError):
            return {}
        return seen if isinstance(seen, dict) else {}

    def _differs(self, name: str, seen: Mapping[str, Any]) -> bool:
        return self.values[name].strip() != str(seen.get(name, "")).strip()

    def preview(self) -> dict[str, Any] | None:
        """Return the timing in words and its next times, or None and set `errors` if it is invalid."""
        if self.schedule is not None and self._keeps_timing():
            return {"words": descriptions.describe(self.schedule.timing), "next": occurrences_of(self.schedule)}
        serializer = TimingSerializer(data=self._timing(), context=self._context())
        try:
            serializer.is_valid(raise_exception=True)
        except APIException as error:
            self._add_errors(error)
            return None
        when = serializer.validated_data
        if self.schedule is None:
            return preview_of(when)
        return preview_of(when, self.schedule.taken, anchor_after(self.schedule, when, clock.now()))

    def _context(self) -> dict[str, Any]:
        return {"request": self, "may": partial(_may, self.role)}

    def _keeps_timing(self) -> bool:
        """Return whether the timing inputs are unchanged.

        Inputs have no seconds and can't express the second of two equal hours, so displaying an untouched value
        must not change it.
        """
        if self.schedule is None:
            return False
        shown = _when_of(self.schedule)
        return all(
            self.values.get(name, "").strip() == shown[name] for name in ("how", *_relevant_inputs(shown["how"]))
        )

    def _timing(self) -> dict[str, Any]:
        if self._keeps_timing():
            return {}
        entered = {name: self.values.get(name, "").strip() for name in _TIMING}
        body: dict[str, Any] = {name: entered[name] for name in _relevant_inputs(self.how) if entered[name]}
        if "exclude_calendars" in body:
            body["exclude_calendars"] = body["exclude_calendars"].split(",")
        body["time_zone"] = entered["time_zone"] or self.organization.time_zone
        body |= self._untouched(body)
        if self.schedule is not None:  # remove what was cleared
            body = dict.fromkeys(_LIMITS) | body
        return body

    def _untouched(self, body: Mapping[str, Any]) -> dict[str, str]:
        """Return the untouched times with their seconds, which the form does not show."""
        if self.schedule is None or body["time_zone"] != self.schedule.time_zone:
            return {}
        shown = _when_of(self.schedule)
        moments = [
            name for name in ("trigger_at", "starts_at", "ends_at") if body.get(name, "") == shown[name] != ""
        ]
        return {name: getattr(self.schedule, name).isoformat() for name in moments}

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
        if self.schedule is not None and not self.values.get("jitter_s", "").strip():
            body["jitter_s"] = 0
        if self.schedule is not None and not self.values.get("concurrency_key", "").strip():
            body["concurrency_key"] = None
        return body

    def _payload(self) -> dict[str, Any]:
        # Keep untouched values, and parts of the payload that the form does not show (a position, further fields).
        shown = {item.name for item in PAYLOADS.get(self.kind, ())}
        before = self.schedule.payload if self.schedule is not None and self.schedule.kind == self.kind else None
        payload = {name: value for name, value in (before or {}).items() if name not in shown}
        for item in PAYLOADS.get(self.kind, ()):
            value = self.values.get(f"p-{item.name}", "").strip()
            if before is not None and value == self._shown(item, before):
                payload |= {item.name: before[item.name]} if item.name in before else {}
                continue
            if not value:
                continue
            if item.type != "json":
                payload[item.name] = value
                continue
            try:
                payload[item.name] = load_json(value)
            except ValueError as error:
                self.errors[f"p-{item.name}"] = str(error)
        return payload

    def _shown(self, item: Field, payload: Mapping[str, Any]) -> str:
        """Return the input's value for this payload; an empty select shows its first choice."""
        shown = _input_of(item, payload)
        if shown or item.choices is None or item.required:
            return shown
        return item.choices(self.organization)[0][0]

    def _add_errors(self, error: APIException) -> None:
        context: Any = {}
        for problem in ProblemFormatter(error, context, error).run()["errors"]:
            path = str(problem["field"] or "")
            name = f"p-{path.split('.')[1]}" if path.startswith("payload.") else path.split(".")[0]
            known = {f"p-{item.name}" for item in PAYLOADS.get(self.kind, ())} | {
                "name",
                "note",
                *_TIMING,
                *_RULES,
            }
            if name in known:
                self.errors.setdefault(name, _(problem["detail"]))
            else:
                self.errors[""] = f"{path}: {_(problem['detail'])}".strip(": ")


def empty(request: HttpRequest, kind: str) -> ScheduleForm:
    """Return the form for a new schedule, with common defaults."""
    organization: Organization = request.organization
    tomorrow = clock.now().astimezone(ZoneInfo(organization.time_zone)) + timedelta(days=1)
    values = {
        "how": "every", "every": "1", "unit": "day", "starts_at": f"{tomorrow:%Y-%m-%d}T09:00",
        "time_zone": organization.time_zone, "missed": "last",
    }  # fmt: skip
    return ScheduleForm(kind, values, organization, request.role)


def of_schedule(request: HttpRequest, schedule: Schedule) -> ScheduleForm:
    """Return the form for an existing schedule."""
    form = ScheduleForm(schedule.kind, {}, request.organization, request.role, schedule)
    form.load_values()
    return form


def _values_of(schedule: Schedule) -> dict[str, str]:
    """Return the values of the inputs that all kinds have in common."""
    return {
        **_when_of(schedule),
        "name": schedule.name,
        "missed": schedule.missed,
        "missed_after_s": str(schedule.missed_after_s),
        "overlap": schedule.overlap,
        "jitter_s": str(schedule.jitter_s or ""),
        "retry_schedule_s": ", ".join(map(str, schedule.retry_schedule_s)),
        "concurrency_key": schedule.concurrency_limit.key if schedule.concurrency_limit else "",
    }


def _input_of(item: Field, payload: Mapping[str, Any]) -> str:
    value = payload.get(item.name)
    if value is None:
        return ""
    return json.dumps(value, ensure_ascii=False) if item.type == "json" else normalize_newlines(str(value)).strip()


def _when_of(schedule: Schedule) -> dict[str, str]:
    """Return the timing as input values."""
    zone = ZoneInfo(schedule.time_zone)
    values = {
        "how": _how(schedule),
        "every": str(schedule.every or ""),
        "unit": schedule.unit,
        "cron": schedule.cron,
        "rrule": schedule.rrule,
        "time_zone": schedule.time_zone,
        "max_occurrences": str(schedule.max_occurrences or ""),
        "exclude_calendars": ",".join(map(str, schedule.exclude_calendars or ())),
    }
    for name in ("trigger_at", "starts_at", "ends_at"):
        moment = getattr(schedule, name)
        values[name] = f"{moment.astimezone(zone):%Y-%m-%dT%H:%M}" if moment else ""
    return values


def _how(schedule: Schedule) -> str:
    if schedule.trigger_at:
        return "once"
    return "cron" if schedule.cron else "rrule" if schedule.rrule else "every"


def _relevant_inputs(how: str) -> tuple[str, ...]:
    """Return the inputs that apply to this kind of timing."""
    if how == "once":
        return ("trigger_at", "time_zone")
    return (
        *(("every", "unit") if how == "every" else ("rrule",) if how == "rrule" else ("cron",)),
        *_LIMITS,
        "time_zone",
    )


def from_request(request: HttpRequest, kind: str, schedule: Schedule | None = None) -> ScheduleForm:
    """Return the form as submitted."""
    values = {name: normalize_newlines(str(value)) for name, value in request.POST.items()}  # browsers send CRLF
    excluded = {pk for pk in map(read_id, request.POST.getlist("exclude_calendars")) if pk is not None}
    values["exclude_calendars"] = ",".join(map(str, sorted(excluded)))
    return ScheduleForm(kind, values, request.organization, request.role, schedule)


def form_choices() -> dict[str, Any]:
    """Return the choices that all kinds of schedule have in common."""
    return {
        "hows": TIMINGS,
        "units": Unit.choices,
        "usual": USUAL,
        "usual_rules": USUAL_RULES,
        "missed_choices": Missed.choices,
        "overlap_choices": Overlap.choices,
        "zones": sorted(time_zones()),
        "kinds": [kind for kind in kinds.all_kinds() if kind.name in PAYLOADS],
    }


def _may(role: str, scope: str) -> bool:
    allowed: Mapping[str, frozenset[str]] = ROLE_MAY
    return scope in allowed.get(role, frozenset())
