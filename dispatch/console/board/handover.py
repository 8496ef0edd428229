"""Hand-over notes at the top of the board, for the people on duty."""

from __future__ import annotations

import re
from typing import Any

from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.views.decorators.http import require_GET, require_POST

from accounts.handover_notes import services
from accounts.models import HandoverNote
from accounts.tenancy import user_of
from dispatch.console import views_base
from dispatch.console.views_base import console_view
from dispatch.jobs.models import Job

# "#12" in a note is a link if the organization has this job.
_JOB_NUMBER = re.compile(r"#(\d{1,18})\b")


def load_notes(request: HttpRequest) -> dict[str, Any]:
    """Return the oldest notes for the user (`handover_notes`), and how many follow them (`later_notes`).

    Each is a `note`, and its text in `parts` with the id of each linked job. A user who is not on duty gets none:
    the notes are for those who begin a shift.
    """
    if request.membership is None or not request.membership.on_duty:
        return {"handover_notes": [], "later_notes": 0}
    open_notes = services.open_notes(request.organization, user_of(request))
    notes = list(open_notes[: services.MAX_SHOWN])
    later = open_notes.count() - len(notes) if len(notes) == services.MAX_SHOWN else 0
    numbers = {int(number) for note in notes for number in _JOB_NUMBER.findall(note.text)}
    jobs = set(Job.objects.of(request.organization).filter(pk__in=numbers).values_list("pk", flat=True))
    entries = [{"note": note, "parts": split_text(note.text, jobs)} for note in notes]
    return {"handover_notes": entries, "later_notes": max(0, later)}


def split_text(text: str, jobs: set[int]) -> list[tuple[str, int | None]]:
    """Split a text at the numbers of these jobs: (part, id of the job or None)."""
    parts: list[tuple[str, int | None]] = []
    begin = 0
    for found in _JOB_NUMBER.finditer(text):
        if (job_id := int(found[1])) in jobs:
            parts += [(text[begin : found.start()], None), (found[0], job_id)]
            begin = found.end()
    parts.append((text[begin:], None))
    return [part for part in parts if part[0]]


@require_GET
@console_view
def show_notes(request: HttpRequest) -> HttpResponse:
    """Render the notes for the user."""
    return _render_notes(request)


@require_POST
@console_view
def read_note(request: HttpRequest, note_id: int) -> HttpResponse:
    """Mark a note as read by the user, and render those that are left. A superuser, who has no shift, gets 404."""
    if request.membership is None:
        raise Http404
    try:
        services.mark_as_read(request.organization, note_id, user_of(request), actor=request.actor)
    except HandoverNote.DoesNotExist:
        raise Http404 from None
    if not views_base.is_fragment(request):
        return HttpResponseRedirect(views_base.return_url(request))
    return _render_notes(request)


def _render_notes(request: HttpRequest) -> HttpResponse:
    return views_base.render_fragment(request, "console/board/_handover.html", load_notes(request))
