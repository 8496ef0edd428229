"""Serve the API of schedules."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from typing import Any

import django_filters
from django.conf import settings
from django.db import transaction
from django.db.models import QuerySet
from django.urls import reverse
from drf_spectacular.utils import extend_schema
from rest_framework import mixins, status
from rest_framework.decorators import action
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from accounts.api.base import OrganizationViewSet, OwnedFilterSet, respond_idempotently
from accounts.api.filters import BooleanFilter
from accounts.auth.permissions import is_allowed
from accounts.models import ApiKey
from dispatch.core import clock
from dispatch.core.api.openapi import IDEMPOTENCY_KEY, IF_MATCH
from dispatch.schedules import queries
from dispatch.schedules.api.feeds import ComingSerializer, DaysSerializer, answer_coming, days_of
from dispatch.schedules.api.run_serializers import RunSerializer
from dispatch.schedules.api.serializers import (
    BackfilledSerializer,
    BackfillSerializer,
    RunNowSerializer,
    ScheduleDecisionSerializer,
    ScheduleDetailSerializer,
    ScheduleFormSerializer,
    ScheduleSerializer,
)
from dispatch.schedules.api.timings import PreviewSerializer, TimingSerializer, preview_of
from dispatch.schedules.models import Schedule
from dispatch.schedules.services import backfill
from dispatch.schedules.services import schedules as schedule_services

_READ, _WRITE = ApiKey.Scope.READ, ApiKey.Scope.SCHEDULES


class ScheduleFilter(OwnedFilterSet):
    """Filter schedules: `?status=active&kind=message&failing=true&next_before=2026-12-01T00:00Z`.

    Deleted schedules are listed only with `?status=deleted`.
    """

    status = django_filters.MultipleChoiceFilter(choices=Schedule.Status.choices)
    name = django_filters.CharFilter(lookup_expr="icontains")
    failing = BooleanFilter(method="by_failing")
    next_after = django_filters.IsoDateTimeFilter("next_at", lookup_expr="gte")
    next_before = django_filters.IsoDateTimeFilter("next_at", lookup_expr="lt")
    bulk = django_filters.NumberFilter("bulk_id", min_value=1, max_value=2**63 - 1)

    class Meta:
        model = Schedule
        fields = ["kind"]

    def by_failing(self, schedules: QuerySet, name: str, value: bool) -> QuerySet:
        return schedules.filter(failures__gt=0) if value else schedules.filter(failures=0)


class ScheduleViewSet(OrganizationViewSet, mixins.ListModelMixin, mixins.RetrieveModelMixin):
    """Schedules: what to do, and when."""

    queryset = Schedule.objects.select_related("concurrency_limit")
    filterset_class = ScheduleFilter
    required = {
        "list": _READ,
        "retrieve": _READ,
        "preview": _READ,
        "occurrences": _READ,
        "upcoming": _READ,
        "create": _WRITE,
        "partial_update": _WRITE,
        "destroy": _WRITE,
        "pause": _WRITE,
        "resume": _WRITE,
        "run_now": _WRITE,
        "backfill": _WRITE,
    }

    def get_serializer_class(self) -> Any:
        return ScheduleSerializer if self.action == "list" else ScheduleDetailSerializer

    def filter_queryset(self, queryset: QuerySet) -> QuerySet:
        schedules = super().filter_queryset(queryset)
        if self.action == "list" and "status" not in self.request.query_params:
            return schedules.exclude(status=Schedule.Status.DELETED)
        return schedules

    def get_serializer_context(self) -> dict[str, Any]:
        return {**super().get_serializer_context(), "may": partial(is_allowed, self.request)}

    @property
    def _pk(self) -> int:
        return int(self.kwargs["pk"])

    @extend_schema(responses=ScheduleDetailSerializer)
    def retrieve(self, request: Request, **kwargs: Any) -> Response:
        """Return one schedule with its next times and most recent runs. The ETag is its version."""
        return self._current()

    @extend_schema(
        request=ScheduleFormSerializer, responses={201: ScheduleDetailSerializer}, parameters=[IDEMPOTENCY_KEY]
    )
    def create(self, request: Request) -> Response:
        """Create a schedule and its first run."""
        form = ScheduleFormSerializer(data=request.data, context=self.get_serializer_context())

        def make() -> tuple[int, dict]:
            form.is_valid(raise_exception=True)
            made = schedule_services.create_schedule(
                request.organization.pk, dict(form.validated_data), actor=request.actor
            )
            return 201, ScheduleDetailSerializer(made, context=self.get_serializer_context()).data

        answer = respond_idempotently(request, "schedules", make)
        answer["Location"] = settings.PUBLIC_BASE_URL + reverse("schedule-detail", args=[answer.data["id"]])
        answer["ETag"] = f'"{answer.data["version"]}"'
        return answer

    @extend_schema(
        request=ScheduleFormSerializer(partial=True), responses=ScheduleDetailSerializer, parameters=[IF_MATCH]
    )
    def partial_update(self, request: Request, **kwargs: Any) -> Response:
        """Change a schedule. A new timing replaces the next run. Runs in progress continue."""
        self.get_object()
        with transaction.atomic():  # a timing is validated, and saved, together with the fields that stay
            schedule = schedule_services.lock_schedule(self._pk, if_match(request))
            form = ScheduleFormSerializer(
                schedule, data=request.data, partial=True, context=self.get_serializer_context()
            )
            form.is_valid(raise_exception=True)
            schedule_services.change_schedule(schedule.pk, dict(form.validated_data), actor=request.actor)
        return self._current()

    @extend_schema(responses={204: None}, parameters=[IF_MATCH])
    def destroy(self, request: Request, **kwargs: Any) -> Response:
        """Delete a schedule. It remains readable. Runs that haven't started are canceled."""
        self.get_object()
        schedule_services.delete_schedule(self._pk, actor=request.actor, version=if_match(request))
        return Response(status=status.HTTP_204_NO_CONTENT)

    @extend_schema(request=ScheduleDecisionSerializer, responses=ScheduleDetailSerializer, parameters=[IF_MATCH])
    @action(detail=True, methods=["post"])
    def pause(self, request: Request, **kwargs: Any) -> Response:
        """Pause a schedule. No runs start until it is resumed."""
        return self._act(schedule_services.pause_schedule)

    @extend_schema(request=ScheduleDecisionSerializer, responses=ScheduleDetailSerializer, parameters=[IF_MATCH])
    @action(detail=True, methods=["post"])
    def resume(self, request: Request, **kwargs: Any) -> Response:
        """Resume a schedule at its first occurrence from now. Occurrences during the pause are skipped."""
        return self._act(schedule_services.resume_schedule)

    @extend_schema(
        request=RunNowSerializer, responses={202: RunSerializer}, parameters=[IF_MATCH, IDEMPOTENCY_KEY]
    )
    @action(detail=True, methods=["post"], url_path="run-now")
    def run_now(self, request: Request, **kwargs: Any) -> Response:
        """Add one run now, with the schedule's payload or another one. The schedule does not change."""
        schedule = self.get_object()
        form = RunNowSerializer(data=request.data, context={**self.get_serializer_context(), "schedule": schedule})

        def make() -> tuple[int, dict]:
            form.is_valid(raise_exception=True)
            given: dict[str, Any] = dict(form.validated_data)
            given.setdefault("version", if_match(request))
            run = schedule_services.run_now(self._pk, actor=request.actor, kind=schedule.kind, **given)
            return 202, RunSerializer(run).data

        answer = respond_idempotently(request, f"schedules.run_now.{self._pk}", make)
        answer["Location"] = settings.PUBLIC_BASE_URL + reverse("run-detail", args=[answer.data["id"]])
        return answer

    @extend_schema(
        request=BackfillSerializer,
        responses={200: BackfilledSerializer, 202: BackfilledSerializer},
        parameters=[IF_MATCH, IDEMPOTENCY_KEY],
    )
    @action(detail=True, methods=["post"])
    def backfill(self, request: Request, **kwargs: Any) -> Response:
        """Run the past occurrences of a range, at most 1,000, as manual runs in their order.

        Occurrences that have run are run again. `preview` only counts them. A range with more occurrences returns
        409 `too_many`, and so does one for which too many manual runs of the schedule are waiting.
        """
        schedule = self.get_object()
        form = BackfillSerializer(data=request.data)
        if form.is_valid() and form.validated_data["preview"]:
            since, until = form.validated_data["since"], form.validated_data.get("until", clock.now())
            found = backfill.preview_backfill(schedule, since, until)
            return Response(_backfilled(found.times, [], is_whole=found.is_whole))

        def make() -> tuple[int, dict]:
            form.is_valid(raise_exception=True)
            given: dict[str, Any] = dict(form.validated_data)
            since, until = given.pop("since"), given.pop("until", clock.now())
            del given["preview"]
            given.setdefault("version", if_match(request))
            runs = backfill.run_range(schedule.pk, since, until, actor=request.actor, **given)
            return 202, _backfilled([run.trigger_at for run in runs], [run.pk for run in runs], is_whole=True)

        return respond_idempotently(request, f"schedules.backfill.{schedule.pk}", make)

    @extend_schema(request=TimingSerializer, responses=PreviewSerializer)
    @action(detail=False, methods=["post"])
    def preview(self, request: Request) -> Response:
        """Describe a timing and list its next ten times, without creating anything."""
        form = TimingSerializer(data=request.data, context=self.get_serializer_context())
        form.is_valid(raise_exception=True)
        return Response(PreviewSerializer(preview_of(form.validated_data)).data)

    @extend_schema(parameters=[DaysSerializer], responses=ComingSerializer, filters=False)
    @action(detail=True, methods=["get"])
    def occurrences(self, request: Request, **kwargs: Any) -> Response:
        """List the schedule's occurrences of the next 31 days, or of `days`, with clock changes and jitter."""
        days = days_of(request)
        return answer_coming(queries.coming_of_schedule(self.get_object(), clock.now() + days), days)

    @extend_schema(parameters=[DaysSerializer], responses=ComingSerializer, filters=False)
    @action(detail=False, methods=["get"], pagination_class=None)
    def upcoming(self, request: Request) -> Response:
        """List the occurrences of all active schedules of the next 31 days, or of `days`, soonest first."""
        days = days_of(request)
        return answer_coming(queries.coming_of_organization(request.organization, clock.now() + days), days)

    def _act(self, do: Callable[..., Schedule]) -> Response:
        self.get_object()
        do(self._pk, actor=self.request.actor, **self._decision())
        return self._current()

    def _decision(self) -> dict[str, Any]:
        given = ScheduleDecisionSerializer(data=self.request.data)
        given.is_valid(raise_exception=True)
        decided: dict[str, Any] = dict(given.validated_data)
        decided.setdefault("version", if_match(self.request))
        return decided

    def _current(self) -> Response:
        schedule = self.get_object()
        return Response(self.get_serializer(schedule).data, headers={"ETag": f'"{schedule.version}"'})


def _backfilled(times: Sequence[datetime], run_ids: list[int], *, is_whole: bool) -> dict[str, Any]:
    """Return the fields of BackfilledSerializer."""
    first, last = (times[0], times[-1]) if times else (None, None)
    answer = {"count": len(times), "first_at": first, "last_at": last, "is_whole": is_whole, "run_ids": run_ids}
    return dict(BackfilledSerializer(answer).data)


def if_match(request: Request) -> int | None:
    """Return the version in If-Match, or None if any version is accepted. Raises ValidationError."""
    given = request.headers.get("If-Match", "").strip()
    if given in ("", "*"):
        return None
    if match := re.fullmatch(r'(?:W/)?"(\d{1,9})"', given):
        return int(match[1])
    raise ValidationError({"If-Match": ["Must be the ETag of a schedule: a number in double quotes."]})
