"""The notes on a job in its panel."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from django.core.exceptions import ValidationError
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect, JsonResponse
from django.shortcuts import get_object_or_404
from django.urls import reverse
from django.views.decorators.http import require_GET, require_http_methods

from accounts.models import Membership
from accounts.tenancy import user_of
from dispatch.console import views_base
from dispatch.console.views_base import console_view
from dispatch.core.ids import read_id, read_ids
from dispatch.jobs.models import Job, JobNote
from dispatch.jobs.models.notes import MAX_NOTE_TEXT
from dispatch.jobs.services import notes

ENDPOINT = "console/notes"
# Notes on a page: the panel shows the latest, and earlier ones on demand.
PAGE = 100
# The list keeps the pages that were opened, up to this many notes.
MAX_SHOWN = 1000
PARTS = {"list": "_notes_list", "earlier": "_notes_entries"}


@require_http_methods(["GET", "POST"])
@console_view
def show_notes(request: HttpRequest, job_id: int) -> HttpResponse:
    """Render the notes, write one, or delete one (`do=delete`).

    `?part=list` renders only the list, with all notes from the id `from` on, and `?part=earlier` the entries of a
    page of those before the id `before`.
    """
    job = get_object_or_404(Job.objects.of(request.organization), pk=job_id)
    refused, text = "", ""
    if request.method == "POST" and request.POST.get("do") == "delete":
        _delete_note(request, job)
    elif request.method == "POST":
        text = request.POST.get("text", "")
        try:
            _write_note(request, job, text)
            text = ""
        except ValidationError as error:
            refused = " ".join(error.messages)
        except Job.DoesNotExist:  # it was deleted meanwhile
            raise Http404 from None
    before = read_id(request.GET.get("before"))
    if not views_base.is_fragment(request) and not refused and before is None:
        return HttpResponseRedirect(f"{reverse('console:board')}?job={job.pk}")
    shown = build_notes(request, job, before=before, begin=_shown_from(request))
    given = {"job": job, "notes": shown, "note_refused": refused, "note_text": text}
    status = 422 if refused else 200
    if not views_base.is_fragment(request):
        return views_base.render_page(
            request, "console/board/note.html", {**given, "current": "board"}, status=status
        )
    part = PARTS.get(request.GET.get("part", ""), "_notes")
    return views_base.render_fragment(request, f"console/board/{part}.html", given, status=status)


@require_GET
@console_view
def list_members(request: HttpRequest) -> HttpResponse:
    """Return the names of the colleagues whom the user can mention."""
    own = user_of(request).pk
    names = [name for user, name in notes.members_of(request.organization.pk) if user != own]
    return JsonResponse({"names": list(dict.fromkeys(names))})


def build_notes(
    request: HttpRequest, job: Job, *, before: int | None = None, begin: int | None = None
) -> dict[str, Any]:
    """Return a page of the job's notes, oldest first, each with its text in `parts`, and how many earlier ones.

    It is the latest page, or the one before the id `before`. With `begin`, the latest page has at least all notes
    from this id on, up to MAX_SHOWN.
    """
    notes_of_job = job.written_notes.order_by("-pk")
    found = notes_of_job if before is None else notes_of_job.filter(pk__lt=before)
    size = PAGE
    if before is None and begin is not None:
        size = min(max(PAGE, found.filter(pk__gte=begin).count()), MAX_SHOWN)
    rows = list(found.select_related("author")[: size + 1])
    is_complete = len(rows) <= size
    rows = rows[:size]
    earlier = 0 if is_complete else found.filter(pk__lt=rows[-1].pk).count()
    is_admin = request.role == Membership.Role.ADMIN
    entries = [
        {
            "note": note,
            "parts": split_text(note),
            "can_delete": notes.may_delete(note, request.actor, is_admin=is_admin),
        }
        for note in reversed(rows)
    ]
    return {
        "entries": entries,
        "count": len(rows) + earlier if before is None else notes_of_job.count(),
        "earlier": earlier,
        "begin": rows[-1].pk if rows else "",
        "longest": MAX_NOTE_TEXT,
        "nonce": uuid4(),
    }


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


def _shown_from(request: HttpRequest) -> int | None:
    """Return the id of the earliest note that the list on the page shows: one of each page that was opened."""
    given = request.POST if request.method == "POST" else request.GET
    return min(read_ids(given.getlist("from")), default=None)


def _write_note(request: HttpRequest, job: Job, text: str) -> None:
    """Write the note of the form, once."""
    views_base.run_once(
        request, f"{ENDPOINT}/{job.pk}", text, lambda: notes.write_note(job.pk, text, actor=request.actor).pk
    )


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
    except Job.DoesNotExist:
        raise Http404 from None
