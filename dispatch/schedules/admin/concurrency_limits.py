"""Provide the admin page for concurrency limits."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest
from django.utils.translation import gettext
from unfold.decorators import display

from accounts.admin.base import EVERYTHING, OwnedAdmin
from dispatch.core.labels import label
from dispatch.schedules.models import ConcurrencyLimit
from dispatch.schedules.services import concurrency_limits
from dispatch.schedules.services.admission import read_use


@admin.register(ConcurrencyLimit)
class ConcurrencyLimitAdmin(OwnedAdmin):
    """Set how many runs with a key may be in progress at once."""

    service_checks_deletion = True
    admin_may = EVERYTHING
    list_display = ["key", "max_runs", "in_use"]
    search_fields = ["key"]
    ordering = ["key"]

    def get_fields(self, request: HttpRequest, obj: Any = None) -> list[str]:
        return ["key", "max_runs"] if obj is None else ["key", "max_runs", "in_use"]

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> list[str]:
        return ["in_use"] if obj is None else ["key", "in_use"]

    def get_changelist_instance(self, request: HttpRequest) -> Any:
        """Read the use of all limits of the page at once."""
        found = super().get_changelist_instance(request)
        uses = read_use(limit.pk for limit in found.result_list)
        for limit in found.result_list:
            limit.use = uses.get(limit.pk)
        return found

    @display(description=label("in use now"))
    def in_use(self, limit: Any) -> str:
        use = limit.use if hasattr(limit, "use") else read_use([limit.pk]).get(limit.pk)
        return (
            gettext("{running:,} running, {waiting:,} waiting").format(running=use.running, waiting=use.waiting)
            if use
            else "—"
        )

    def save_model(self, request: Any, obj: ConcurrencyLimit, form: Any, change: bool) -> None:
        if change:
            concurrency_limits.change_limit(obj.pk, obj.max_runs, actor=request.actor)
        else:
            obj.pk = concurrency_limits.create_limit(
                obj.organization_id, obj.key, obj.max_runs, actor=request.actor
            ).pk

    def delete_model(self, request: Any, obj: ConcurrencyLimit) -> None:
        concurrency_limits.delete_limit(obj.pk, actor=request.actor)
