"""Provide the admin page for bulk imports."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpResponse
from django.utils.html import format_html, format_html_join
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _
from unfold.decorators import action, display

from accounts.admin.base import ACT, VIEW, OwnedAdmin
from dispatch.core.labels import label
from dispatch.schedules.models import BulkImport
from dispatch.schedules.services import bulk_import

SHOWN = 20


@admin.register(BulkImport)
class BulkImportAdmin(OwnedAdmin):
    """Show the progress of bulk imports and their rejected rows."""

    subject = "bulk"
    admin_may = ACT
    dispatcher_may = VIEW
    list_display = ["id", "status", "total", "created", "refused", "created_at"]
    list_filter = ["status"]
    ordering = ["-id"]
    actions_detail = ["cancel_this"]
    fields = ["status", "total", "created", "refused", "created_at", "ended_at", "refusals"]
    readonly_fields = fields

    @display(description=label("rejected rows"))
    def refusals(self, row: BulkImport) -> str:
        rejected = list(row.row_errors.all()[:SHOWN])
        items = ((entry.row, "; ".join(str(error.get("detail")) for error in entry.errors)) for entry in rejected)
        return (
            format_html("<ul>{}</ul>", format_html_join("", "<li>{}: {}</li>", items))
            if rejected
            else gettext("none")
        )

    @action(
        description=_("Cancel"),
        permissions=["act"],
        dialog={"title": _("Cancel this import?"), "description": _("Schedules created so far are kept.")},
    )
    def cancel_this(self, request: Any, form: Any, object_id: str) -> HttpResponse:
        bulk_import.cancel_import(int(object_id), actor=request.actor)
        return self.back_to(object_id)
