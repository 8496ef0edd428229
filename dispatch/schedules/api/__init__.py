"""Route the API of schedules under /api/v1/."""

from __future__ import annotations

from rest_framework.routers import SimpleRouter

from dispatch.schedules.api.bulk import BulkViewSet
from dispatch.schedules.api.calendars import ExclusionCalendarViewSet
from dispatch.schedules.api.concurrency_limits import ConcurrencyLimitViewSet
from dispatch.schedules.api.feeds import ScheduleFeedViewSet
from dispatch.schedules.api.runs import RunViewSet
from dispatch.schedules.api.schedules import ScheduleViewSet

router = SimpleRouter()
router.register("schedules", ScheduleViewSet, basename="schedule")
router.register("runs", RunViewSet, basename="run")
router.register("exclusion-calendars", ExclusionCalendarViewSet, basename="exclusion-calendar")
router.register("concurrency-limits", ConcurrencyLimitViewSet, basename="concurrency-limit")
router.register("schedule-feeds", ScheduleFeedViewSet, basename="schedule-feed")
router.register("schedule-imports", BulkViewSet, basename="schedule-import")
urlpatterns = router.urls
