"""Serve the API of runs."""

from __future__ import annotations

from typing import Any

import django_filters
from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework import mixins, status
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from accounts.api.base import OrganizationViewSet, OwnedFilterSet
from accounts.models import ApiKey
from dispatch.outbox.api.messages import NoteSerializer
from dispatch.schedules.api.run_serializers import RunDetailSerializer, RunSerializer
from dispatch.schedules.models import Run, RunStatus, Schedule
from dispatch.schedules.services import actions, backfill

_READ, _WRITE = ApiKey.Scope.READ, ApiKey.Scope.SCHEDULES


class RunFilter(OwnedFilterSet):
    """Filter runs: `?schedule=7&status=failed&kind=http&trigger_after=…&trigger_before=…`."""

    schedule = django_filters.ModelChoiceFilter(queryset=Schedule.objects.all())
    status = django_filters.MultipleChoiceFilter(choices=RunStatus.choices)
    trigger_after = django_filters.IsoDateTimeFilter("trigger_at", lookup_expr="gte")
    trigger_before = django_filters.IsoDateTimeFilter("trigger_at", lookup_expr="lt")

    class Meta:
        model = Run
        fields = ["kind"]


class RunViewSet(OrganizationViewSet, mixins.ListModelMixin, mixins.RetrieveModelMixin):
    """Occurrences of schedules, and their results."""

    queryset: QuerySet = Run.objects.select_related("schedule").order_by("-id")
    filterset_class = RunFilter
    required = {"list": _READ, "retrieve": _READ, "cancel": _WRITE, "retry": _WRITE, "run_missed": _WRITE}

    def get_serializer_class(self) -> Any:
        return RunSerializer if self.action == "list" else RunDetailSerializer

    @extend_schema(request=NoteSerializer, responses=RunDetailSerializer)
    @action(detail=True, methods=["post"])
    def cancel(self, request: Request, pk: str) -> Response:
        """Cancel a run that is queued, running, waiting for a retry, or manual.

        A run that is running gets `cancel_requested_at`. Its worker stops: the connection of a URL call is closed.
        Then the run is `cancelled`, unless it succeeded before.
        """
        actions.cancel_run(self.get_object().pk, actor=request.actor, **self._note())
        return self._current()

    @extend_schema(request=NoteSerializer, responses=RunDetailSerializer)
    @action(detail=True, methods=["post"])
    def retry(self, request: Request, pk: str) -> Response:
        """Retry a run that has failed permanently.

        If its schedule allows no overlap, it begins when no other run of the schedule is open.
        """
        actions.retry_run(self.get_object().pk, actor=request.actor, **self._note())
        return self._current()

    @extend_schema(request=NoteSerializer, responses={202: RunSerializer(many=True)})
    @action(detail=True, methods=["post"], url_path="run-missed", pagination_class=None, filterset_class=None)
    def run_missed(self, request: Request, pk: str) -> Response:
        """Run the occurrences that a missed or skipped run stands for, at most 1,000.

        Returns the new manual runs.
        """
        runs = backfill.run_missed(self.get_object().pk, actor=request.actor, **self._note())
        return Response(RunSerializer(runs, many=True).data, status=status.HTTP_202_ACCEPTED)

    def _note(self) -> dict[str, Any]:
        given = NoteSerializer(data=self.request.data)
        given.is_valid(raise_exception=True)
        return dict(given.validated_data)

    def _current(self) -> Response:
        return Response(self.get_serializer(self.get_object()).data)
