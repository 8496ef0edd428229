"""Serve the API of coming runs and of calendar feeds."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework import mixins, serializers, status
from rest_framework.request import Request
from rest_framework.response import Response

from accounts.api.base import OrganizationViewSet
from accounts.models import ApiKey
from dispatch.core import clock
from dispatch.core.api.serializers import StrictSerializer
from dispatch.schedules.api.timings import OccurrenceSerializer, occurrence
from dispatch.schedules.models import Schedule, ScheduleFeed
from dispatch.schedules.queries import Coming
from dispatch.schedules.services import feeds

_WRITE = ApiKey.Scope.SCHEDULES
MAX_DAYS = 92


class DaysSerializer(StrictSerializer):
    """The span of a preview: `?days=31`, from now on."""

    days = serializers.IntegerField(min_value=1, max_value=MAX_DAYS, default=31)


class ComingRunSerializer(OccurrenceSerializer):
    """One occurrence with its schedule."""

    schedule = serializers.IntegerField()
    schedule_name = serializers.CharField()


class ComingSerializer(serializers.Serializer):
    """The occurrences before `until`, in order, at most 1,000. `is_whole`: False if there are more."""

    until = serializers.DateTimeField()
    is_whole = serializers.BooleanField()
    occurrences = ComingRunSerializer(many=True)


class ScheduleFeedSerializer(serializers.ModelSerializer):
    """A calendar feed. `url` is the link. With it, anyone can read the names and times of the coming runs."""

    url = serializers.SerializerMethodField()

    class Meta:
        model = ScheduleFeed
        fields = ["id", "name", "url", "created_at"]
        read_only_fields = ["id", "url", "created_at"]

    def get_url(self, feed: ScheduleFeed) -> str:
        return feeds.feed_url(feed)


class ScheduleFeedFormSerializer(StrictSerializer):
    """Client input to create a feed."""

    name = serializers.CharField(max_length=80, help_text="Who or what uses the link.")


class ScheduleFeedViewSet(
    OrganizationViewSet, mixins.ListModelMixin, mixins.RetrieveModelMixin, mixins.DestroyModelMixin
):
    """Signed links to an iCalendar feed of the organization's coming runs."""

    queryset: QuerySet = ScheduleFeed.objects.order_by("-id")
    serializer_class = ScheduleFeedSerializer
    required = dict.fromkeys(["list", "retrieve", "create", "destroy"], _WRITE)

    @extend_schema(request=ScheduleFeedFormSerializer, responses={201: ScheduleFeedSerializer})
    def create(self, request: Request) -> Response:
        """Create a feed. Its link is valid until the feed is deleted."""
        form = ScheduleFeedFormSerializer(data=request.data)
        form.is_valid(raise_exception=True)
        feed = feeds.create_feed(request.organization.pk, form.validated_data["name"], actor=request.actor)
        return Response(ScheduleFeedSerializer(feed).data, status=status.HTTP_201_CREATED)

    def perform_destroy(self, feed: ScheduleFeed) -> None:
        feeds.revoke_feed(feed, actor=self.request.actor)


def days_of(request: Request) -> timedelta:
    """Return the span in the query. Raises ValidationError."""
    form = DaysSerializer(data=request.query_params.dict())
    form.is_valid(raise_exception=True)
    return timedelta(days=form.validated_data["days"])


def answer_coming(coming: Coming, days: timedelta) -> Response:
    """Answer with these occurrences."""
    return Response(
        ComingSerializer(
            {
                "until": clock.now() + days,
                "is_whole": coming.is_whole,
                "occurrences": [_row(at, schedule) for at, schedule in coming.occurrences],
            }
        ).data
    )


def _row(at: Any, schedule: Schedule) -> dict[str, Any]:
    shown = occurrence(at, schedule.timing, schedule.due_at(at))
    return {**shown, "schedule": schedule.pk, "schedule_name": schedule.name}
