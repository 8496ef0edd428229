"""The thread of a job in its panel: texts between its technicians and the dispatchers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from uuid import uuid4

from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.urls import reverse
from django.views.decorators.http import require_http_methods

from dispatch.console import views_base
from dispatch.console.views_base import console_view
from dispatch.core.api.problems import Conflict
from dispatch.core.ids import read_id
from dispatch.core.languages import gettext as _
from dispatch.jobs.models import Job, JobText
from dispatch.jobs.services import threads
from dispatch.telephony.error_texts import describe_error
from dispatch.telephony.models import Text

ENDPOINT = "console/texts"
# The latest texts that the panel shows.
MAX_TEXTS = 100
_SENDING = frozenset({"created", "requesting", "unknown"})


@require_http_methods(["GET", "POST"])
@console_view
def show_thread(request: HttpRequest, job_id: int) -> HttpResponse:
    """Render the thread (`?part=list`: only its texts), send a text, or mark all as handled (`do=handled`)."""
    jobs = Job.objects.of(request.organization).select_related("technician", "organization")
    job = get_object_or_404(jobs, pk=job_id)
    refused, body = "", ""
    if request.method == "POST":
        body = request.POST.get("body", "")
        try:
            if request.POST.get("do") == "handled":
                threads.mark_handled(job.pk, actor=request.actor)
            else:
                _send_text(request, job, body)
                body = ""
        except Conflict as conflict:
            refused = str(conflict.detail)
        except ValidationError as error:
            refused = " ".join(error.messages)
    if not views_base.is_fragment(request):
        return HttpResponseRedirect(f"{reverse('console:board')}?job={job.pk}")
    part = "_thread_list" if request.GET.get("part") == "list" else "_thread"
    given = {"job": job, "thread": build_thread(job), "thread_refused": refused, "thread_body": body}
    status = 422 if refused else 200
    return views_base.render_fragment(request, f"console/board/{part}.html", given, status=status)


def build_thread(job: Job) -> dict[str, Any]:
    """Return the job's texts, oldest first, and whom a dispatcher can text."""
    rows = list(job.texts.select_related("text", "technician").order_by("-pk")[:MAX_TEXTS])
    to = threads.recipients(job)
    return {
        "rows": [_entry(row) for row in reversed(rows)],
        "to": to,
        "ids": ",".join(str(technician.pk) for technician in to),
        "unanswered": sum(row.handled_at is None for row in rows),
        "why_not": threads.why_not_textable(job, to[0]) if len(to) == 1 else "",
        "longest": threads.LONGEST,
        "can_compose": bool(to) and job.status != Job.Status.CANCELLED,
        "nonce": uuid4(),
    }


def _send_text(request: HttpRequest, job: Job, body: str) -> None:
    """Send the text of the form, once."""
    technician = read_id(request.POST.get("technician"))
    views_base.run_once(
        request,
        f"{ENDPOINT}/{job.pk}",
        [technician, body],
        lambda: threads.send(job.pk, body, technician_id=technician, actor=request.actor).pk,
    )


def _entry(row: JobText) -> dict[str, Any]:
    theirs = row.text.direction == Text.Direction.IN
    tone, words = "", ""
    if not theirs:
        if row.text.status in threads.FAILED:
            tone, words = (
                "late",
                f"{_('Not delivered.')} {describe_error(row.text.error_code, row.text.error_message)}".strip(),
            )
        elif row.text.status == Text.Status.DELIVERED:
            words = _("Delivered")
        else:
            words = _("Sending") if row.text.status in _SENDING else _("Sent")
    is_new = theirs and row.handled_at is None
    return {"row": row, "theirs": theirs, "tone": tone, "words": words, "is_new": is_new}


def unanswered_texts(jobs: Iterable[int]) -> dict[int, JobText]:
    """Return the latest unanswered text of each of these jobs, by job."""
    rows = JobText.objects.filter(job__in=list(jobs), handled_at=None).select_related("text", "technician")
    return {row.job_id: row for row in rows.order_by("pk")}
