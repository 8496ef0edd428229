"""Serve the API of exclusion calendars."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema, extend_schema_field
from rest_framework import mixins, serializers, status
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from accounts.api.base import OrganizationViewSet
from accounts.models import ApiKey
from dispatch.core.api.serializers import StrictSerializer
from dispatch.core.http.ssrf import check_target_url
from dispatch.schedules import ical
from dispatch.schedules.models import ExclusionCalendar
from dispatch.schedules.services import calendars

_READ, _WRITE = ApiKey.Scope.READ, ApiKey.Scope.SCHEDULES
SHOWN = 100


@contextmanager
def _unreadable_as_error() -> Iterator[None]:
    try:
        yield
    except ical.UnreadableCalendar as error:
        raise serializers.ValidationError({"content": str(error)}) from None


class ExclusionEntrySerializer(serializers.Serializer):
    """A day or interval: dates, wall-clock times in each schedule's zone, or moments. The end is excluded."""

    start = serializers.CharField()
    end = serializers.CharField()
    name = serializers.CharField()


class ExclusionCalendarSerializer(serializers.ModelSerializer):
    """An exclusion calendar. `last_error` is why its last refresh failed; the last good copy stays in use."""

    entry_count = serializers.SerializerMethodField()
    entries = serializers.SerializerMethodField(help_text=f"The first {SHOWN} entries, in order.")

    class Meta:
        model = ExclusionCalendar
        fields = [
            "id", "name", "url", "entry_count", "entries", "refreshed_at", "refresh_at", "last_error",
            "created_at",
        ]  # fmt: skip
        read_only_fields = fields

    def get_entry_count(self, row: ExclusionCalendar) -> int:
        return len(row.entries)

    @extend_schema_field(ExclusionEntrySerializer(many=True))
    def get_entries(self, row: ExclusionCalendar) -> Any:
        return [dict(zip(("start", "end", "name"), entry, strict=True)) for entry in row.entries[:SHOWN]]


class ExclusionCalendarFormSerializer(StrictSerializer):
    """Client input: the URL of an iCalendar file, which is read once a day, or the text of one."""

    name = serializers.CharField(max_length=80)
    url = serializers.CharField(max_length=2000, required=False, validators=[check_target_url])
    content = serializers.CharField(
        max_length=ical.MAX_BYTES,
        required=False,
        trim_whitespace=False,
        help_text=f"The text of an iCalendar file, at most {ical.MAX_BYTES // 1024} KB.",
    )

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if "url" in attrs and "content" in attrs:
            raise serializers.ValidationError({"url": "Set either url or content, not both."})
        if not self.partial and not ("url" in attrs or "content" in attrs):
            raise serializers.ValidationError({"url": "Set url or content."})
        return attrs


class ExclusionCalendarViewSet(
    OrganizationViewSet, mixins.ListModelMixin, mixins.RetrieveModelMixin, mixins.DestroyModelMixin
):
    """Calendars of days and intervals at which schedules do not run, such as holidays."""

    queryset: QuerySet = ExclusionCalendar.objects.defer("content").order_by("-id")
    serializer_class = ExclusionCalendarSerializer
    required = {
        "list": _READ,
        "retrieve": _READ,
        **dict.fromkeys(["create", "partial_update", "destroy", "refresh"], _WRITE),
    }

    @extend_schema(request=ExclusionCalendarFormSerializer, responses={201: ExclusionCalendarSerializer})
    def create(self, request: Request) -> Response:
        """Create a calendar. One with a URL is empty until it has been read, within a minute."""
        form = ExclusionCalendarFormSerializer(data=request.data)
        form.is_valid(raise_exception=True)
        with _unreadable_as_error():
            made = calendars.create_calendar(request.organization.pk, actor=request.actor, **form.validated_data)
        return Response(ExclusionCalendarSerializer(made).data, status=status.HTTP_201_CREATED)

    @extend_schema(request=ExclusionCalendarFormSerializer(partial=True), responses=ExclusionCalendarSerializer)
    def partial_update(self, request: Request, **kwargs: Any) -> Response:
        """Change a calendar. The next runs of its schedules move within a minute."""
        calendar = self.get_object()
        form = ExclusionCalendarFormSerializer(data=request.data, partial=True)
        form.is_valid(raise_exception=True)
        with _unreadable_as_error():
            changed = calendars.change_calendar(calendar.pk, dict(form.validated_data), actor=request.actor)
        return Response(ExclusionCalendarSerializer(changed).data)

    def perform_destroy(self, calendar: ExclusionCalendar) -> None:
        calendars.delete_calendar(calendar.pk, actor=self.request.actor)

    @extend_schema(request=None, responses={202: ExclusionCalendarSerializer})
    @action(detail=True, methods=["post"])
    def refresh(self, request: Request, **kwargs: Any) -> Response:
        """Read the calendar's URL now instead of at its next time."""
        calendar = calendars.request_refresh(self.get_object().pk, actor=request.actor)
        return Response(ExclusionCalendarSerializer(calendar).data, status=status.HTTP_202_ACCEPTED)
