"""Show hand-over notes, read-only."""

from __future__ import annotations

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.text import Truncator
from unfold.decorators import display

from accounts.admin.base import VIEW, OwnedAdmin
from accounts.models import HandoverNote
from dispatch.core.labels import label


@admin.register(HandoverNote)
class HandoverNoteAdmin(OwnedAdmin):
    """Show what dispatchers left for the next shift, and who has read it."""

    subject = "handover_note"
    admin_may = VIEW
    dispatcher_may = VIEW
    superuser_may = VIEW
    list_display = ["written_at", "author", "beginning", "read_by"]
    list_select_related = ["author"]
    search_fields = ["text", "author__name"]
    show_full_result_count = False
    ordering = ["-written_at", "-pk"]
    fields = ["author", "written_at", "text", "read_by"]

    def get_queryset(self, request: HttpRequest) -> QuerySet:
        return super().get_queryset(request).prefetch_related("readings__reader")

    @display(description=label("text"))
    def beginning(self, note: HandoverNote) -> str:
        return Truncator(note.text).chars(80)

    @display(description=label("read by"))
    def read_by(self, note: HandoverNote) -> str:
        return ", ".join(reading.reader.name for reading in note.readings.all()) or "—"
