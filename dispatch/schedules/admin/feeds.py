"""Provide the admin page for calendar feeds."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest
from unfold.decorators import display

from accounts.admin.base import EVERYTHING, OwnedAdmin
from dispatch.core.labels import label
from dispatch.schedules.models import ScheduleFeed
from dispatch.schedules.services import feeds


@admin.register(ScheduleFeed)
class ScheduleFeedAdmin(OwnedAdmin):
    """Create and revoke links to the calendar feed of an organization's coming runs."""

    admin_may = EVERYTHING - {"change"}
    list_display = ["name", "created_at"]
    search_fields = ["name"]
    ordering = ["-id"]

    def get_fields(self, request: HttpRequest, obj: Any = None) -> list[str]:
        return ["name"] if obj is None else ["name", "link", "created_at"]

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> list[str]:
        return ["link", "created_at"]

    @display(description=label("link (anyone who has it can read the names and times of runs)"))
    def link(self, feed: ScheduleFeed) -> str:
        return feeds.feed_url(feed)

    def save_model(self, request: Any, obj: ScheduleFeed, form: Any, change: bool) -> None:
        obj.pk = feeds.create_feed(obj.organization_id, obj.name, actor=request.actor).pk

    def delete_model(self, request: Any, obj: ScheduleFeed) -> None:
        feeds.revoke_feed(obj, actor=request.actor)
