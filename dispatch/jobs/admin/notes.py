"""Show the notes on jobs, read-only."""

from __future__ import annotations

from django.contrib import admin
from django.urls import reverse
from django.utils.html import format_html
from django.utils.text import Truncator
from unfold.decorators import display

from accounts.admin.base import VIEW, OwnedAdmin
from dispatch.core.labels import label
from dispatch.jobs.models import JobNote


@admin.register(JobNote)
class JobNoteAdmin(OwnedAdmin):
    """Show what dispatchers wrote on jobs."""

    admin_may = VIEW
    dispatcher_may = VIEW
    list_display = ["written_at", "job_link", "author_name", "beginning"]
    list_select_related = ["author"]
    search_fields = ["=job__id", "text", "author_label"]
    show_full_result_count = False
    ordering = ["-id"]
    fields = ["job_link", "author_name", "written_at", "text"]

    @display(description=label("job"), ordering="job_id")
    def job_link(self, note: JobNote) -> str:
        return format_html(
            '<a href="{}">#{}</a>', reverse("admin:jobs_job_change", args=[note.job_id]), note.job_id
        )

    @display(description=label("author"))
    def author_name(self, note: JobNote) -> str:
        return note.author_name

    @display(description=label("text"))
    def beginning(self, note: JobNote) -> str:
        return Truncator(note.text).chars(80)
