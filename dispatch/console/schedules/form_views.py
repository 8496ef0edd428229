"""The forms of a schedule: create and edit it, and run it once with changed values."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_POST

from dispatch.console import views_base
from dispatch.console.schedules import forms
from dispatch.console.schedules.payload_fields import PAYLOADS
from dispatch.console.schedules.views import perform_once, schedule_of
from dispatch.console.views_base import console_view
from dispatch.core.api.idempotency import KeyReused
from dispatch.core.api.problems import Conflict, LimitReached
from dispatch.core.ids import read_id
from dispatch.core.languages import gettext as _
from dispatch.schedules.models import Schedule
from dispatch.schedules.services import schedules


@require_http_methods(["GET", "POST"])
@console_view
def new(request: HttpRequest) -> HttpResponse:
    """Render the form for a new schedule; `?kind=` chooses the kind. Another kind keeps what was entered."""
    kind = request.POST.get("new_kind") or request.POST.get("kind") or request.GET.get("kind") or "submission"
    if kind not in PAYLOADS:
        raise Http404
    if request.method == "GET":
        return _form(request, forms.empty(request, kind))
    form = forms.from_request(request, kind)
    if "new_kind" in request.POST:
        return _form(request, form)
    if "preview" in request.POST:
        return _form(request, form, preview=form.preview())

    def create() -> int:
        if not form.is_valid():
            raise views_base.InvalidForm
        return schedules.create_schedule(request.organization.pk, form.cleaned, actor=request.actor).pk

    try:
        schedule_id, _is_repeat = perform_once(request, create)
    except views_base.InvalidForm:
        return _form(request, form, status=422)
    except KeyReused:
        form.refusal = _("This form has already created a schedule. Submit it again to create another one.")
        return _form(request, form, preview=form.preview(), status=409)
    except LimitReached as error:
        form.errors[""] = _(str(error.detail))
        return _form(request, form, status=422)
    messages.success(request, _("Schedule created."))
    return views_base.back_to(request, reverse("console:schedule", args=[schedule_id]))


@require_http_methods(["GET", "POST"])
@console_view
def edit(request: HttpRequest, schedule_id: int) -> HttpResponse:
    """Render the form for an existing schedule."""
    schedule = schedule_of(request, schedule_id)
    if request.method == "GET":
        form = forms.of_schedule(request, schedule)
        return _form(request, form, preview=form.preview())
    form = forms.from_request(request, schedule.kind, schedule)
    if "preview" in request.POST:
        return _form(request, form, preview=form.preview())
    if not form.is_valid():
        return _form(request, form, status=422)
    try:
        schedules.change_schedule(
            schedule.pk, form.cleaned, actor=request.actor, version=_version(request, schedule)
        )
    except Conflict as error:
        _refuse(request, form, error)
        return _form(request, form, preview=form.preview(), status=409)
    messages.success(request, _("Schedule saved."))
    return views_base.back_to(request, reverse("console:schedule", args=[schedule.pk]))


@require_POST
@console_view
def preview(request: HttpRequest) -> HttpResponse:
    """Render the next ten times of the timing in the form, for htmx."""
    pk = read_id(request.POST.get("schedule", ""))
    schedule = None if pk is None else schedule_of(request, pk)
    form = forms.from_request(request, request.POST.get("kind", ""), schedule)
    times = form.preview()
    return views_base.render_fragment(request, "console/schedules/_preview.html", {"preview": times, "form": form})


@require_http_methods(["GET", "POST"])
@console_view
def run_with_changes(request: HttpRequest, schedule_id: int) -> HttpResponse:
    """Render the schedule's payload as a form, and run the schedule once with what was entered."""
    schedule = schedule_of(request, schedule_id)
    if schedule.kind not in PAYLOADS or schedule.status == "deleted":
        raise Http404
    if request.method == "GET":
        return _run_form(request, forms.of_schedule(request, schedule))
    form = forms.from_request(request, schedule.kind, schedule)

    def run() -> int:
        if not form.is_payload_valid():
            raise views_base.InvalidForm
        version = _version(request, schedule)
        made = schedules.run_now(
            schedule.pk, actor=request.actor, version=version, kind=schedule.kind, **form.cleaned
        )
        return made.pk

    try:
        run_id, _is_repeat = perform_once(request, run)
    except views_base.InvalidForm:
        return _run_form(request, form, status=422)
    except KeyReused:
        form.refusal = _("This form has already queued a run. Submit it again to queue another one.")
        return _run_form(request, form, status=409)
    except Conflict as error:
        _refuse(request, form, error)
        return _run_form(request, form, status=409)
    messages.success(request, _("Run queued with these values. The schedule keeps its own."))
    return views_base.back_to(request, reverse("console:schedule_run", args=[run_id]))


def _version(request: HttpRequest, schedule: Schedule) -> int | None:
    """Return the version that the form shows. That of a deleted schedule does not matter."""
    return None if schedule.status == "deleted" else read_id(request.POST.get("version", ""))


def _refuse(request: HttpRequest, form: forms.ScheduleForm, error: Conflict) -> None:
    """Say in the form why nothing was saved. If the schedule has changed, prepare the form for another attempt."""
    assert form.schedule is not None
    if isinstance(error, schedules.NotInThisStatus):
        form.refusal = _(str(error.detail))
        return
    form.show_current(schedule_of(request, form.schedule.pk))
    form.refusal = _(
        "This schedule has changed since you read it. Your input is kept, and the other fields are up to date. "
        "Review them and try again."
    )


def _run_form(request: HttpRequest, form: forms.ScheduleForm, *, status: int = 200) -> HttpResponse:
    context = {"current": "schedules", "form": form, "nonce": uuid4()}
    return views_base.render_page(request, "console/schedules/run_now.html", context, status=status)


def _form(
    request: HttpRequest, form: forms.ScheduleForm, *, preview: dict[str, Any] | None = None, status: int = 200
) -> HttpResponse:
    context = {"current": "schedules", "form": form, "nonce": uuid4(), "preview": preview, **forms.form_choices()}
    return views_base.render_page(request, "console/schedules/form.html", context, status=status)
