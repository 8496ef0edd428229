"""The notes on a job in its panel."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import ValidationError
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect, JsonResponse
from django.shortcuts import get_object_or_404
from django.urls import reverse
from django.views.decorators.http import require_GET, require_http_methods

from accounts.models import Membership
from accounts.tenancy import user_of
from dispatch.console import views_base
from dispatch.console.views_base import console_view
from dispatch.core.ids import read_id
from dispatch.jobs.models import Job, JobNote
from dispatch.jobs.models.notes import MAX_NOTE_TEXT
from dispatch.jobs.services import notes

# The latest notes that the panel shows.
MAX_NOTES = 100


@require_http_methods(["GET", "POST"])
@console_view
def show_notes(request: HttpRequest, job_id: int) -> HttpResponse:
    """Render the notes (`?part=list`: only the list), write one, or delete one (`do=delete`)."""
    job = get_object_or_404(Job.objects.of(request.organization), pk=job_id)
    refused, text = "", ""
    if request.method == "POST" and request.POST.get("do") == "delete":
        _delete_note(request, job)
    elif request.method == "POST":
        text = request.POST.get("text", "")
        try:
            notes.write_note(job.pk, text, actor=request.actor, is_form=True)
            text = ""
        except ValidationError as error:
            refused = " ".join(error.messages)
    if not views_base.is_fragment(request) and not refused:
        return HttpResponseRedirect(f"{reverse('console:board')}?job={job.pk}")
    given = {"job": job, "notes": build_notes(request, job), "note_refused": refused, "note_text": text}
    if not views_base.is_fragment(request):
        return views_base.render_page(
            request, "console/board/note.html", {**given, "current": "board"}, status=422
        )
    part = "_notes_list" if request.GET.get("part") == "list" else "_notes"
    return views_base.render_fragment(request, f"console/board/{part}.html", given)


@require_GET
@console_view
def list_members(request: HttpRequest) -> HttpResponse:
    """Return the names of the colleagues whom the user can mention."""
    own = user_of(request).pk
    names = [name for user, name in notes.members_of(request.organization.pk) if user != own]
    return JsonResponse({"names": list(dict.fromkeys(names))})


def build_notes(request: HttpRequest, job: Job) -> dict[str, Any]:
    """Return the job's latest notes, oldest first, each with its text in `parts`, and how many earlier ones."""
    rows = list(job.written_notes.select_related("author").order_by("-pk")[: MAX_NOTES + 1])
    count = len(rows) if len(rows) <= MAX_NOTES else job.written_notes.count()
    rows = rows[:MAX_NOTES]
    is_admin = request.role == Membership.Role.ADMIN
    entries = [
        {
            "note": note,
            "parts": split_text(note),
            "can_delete": notes.may_delete(note, request.actor, is_admin=is_admin),
        }
        for note in reversed(rows)
    ]
    return {"entries": entries, "count": count, "earlier": count - len(rows), "longest": MAX_NOTE_TEXT}


def split_text(note: JobNote) -> list[tuple[str, bool]]:
    """Split a note's text at its mentions: (part, whether it is a mention)."""
    parts: list[tuple[str, bool]] = []
    begin = 0
    for mention in note.mentions:
        parts += [
            (note.text[begin : mention["start"]], False),
            (note.text[mention["start"] : mention["end"]], True),
        ]
        begin = mention["end"]
    parts.append((note.text[begin:], False))
    return [part for part in parts if part[0]]


def _delete_note(request: HttpRequest, job: Job) -> None:
    """Delete the note of the form. One that a colleague has deleted meanwhile is deleted."""
    note_id = read_id(request.POST.get("note"))
    if note_id is None:
        raise Http404
    is_admin = request.role == Membership.Role.ADMIN
    try:
        notes.delete_note(job.pk, note_id, actor=request.actor, is_admin=is_admin)
    except JobNote.DoesNotExist:
        return
