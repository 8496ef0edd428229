"""The form with which a dispatcher enters a request taken by phone. It becomes a job as any submission does."""

from __future__ import annotations

from hashlib import sha256
from typing import Any
from uuid import UUID, uuid4

from django import forms
from django.core.cache import cache
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.urls import reverse
from django.views.decorators.http import require_GET, require_http_methods
from phonenumber_field.formfields import PhoneNumberField

from accounts.models import Organization
from accounts.phone_inputs import use_region
from dispatch.console import views_base
from dispatch.console.board import job_panel
from dispatch.console.views_base import console_view
from dispatch.core.api import idempotency
from dispatch.core.form_languages import translate_field
from dispatch.core.languages import gettext as _
from dispatch.core.languages import mark
from dispatch.jobs import geocoding, services
from dispatch.jobs.models import Job, Priority, ServiceType, Submission
from dispatch.jobs.window_fields import NAMES as WINDOW_FIELDS
from dispatch.jobs.window_fields import add_window_fields, clean_window
from dispatch.technicians.models import Technician

ENDPOINT = "console_new_job"
# A geocoded address is remembered for this long (seconds).
LOCATED_S = 300


class NewJobForm(forms.Form):
    """A request taken by phone. `nonce`: the same form sent twice makes one job."""

    nonce = forms.UUIDField(widget=forms.HiddenInput)
    customer_phone = PhoneNumberField(label=mark("Customer's phone"))
    customer_name = forms.CharField(max_length=120, label=mark("Customer's name"))
    service_type = forms.ModelChoiceField(
        queryset=ServiceType.objects.none(), label=mark("Service"), empty_label=mark("Choose a service")
    )
    priority = forms.TypedChoiceField(
        label=mark("Priority"), choices=Priority.choices, coerce=int, initial=Priority.NORMAL.value
    )
    address = forms.CharField(
        label=mark("Address"),
        max_length=300,
        widget=forms.Textarea({"rows": 2}),
        help_text=mark("Street, city and ZIP code, to find technicians nearby."),
    )
    notes = forms.CharField(
        label=mark("Notes"), max_length=2000, required=False, widget=forms.Textarea({"rows": 3})
    )
    preferred_technician = forms.ModelChoiceField(
        queryset=Technician.objects.none(),
        required=False,
        label=mark("Preferred technician"),
        empty_label=mark("Nobody in particular"),
    )

    def __init__(self, *args: Any, organization: Organization, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        phone = self.fields["customer_phone"] = PhoneNumberField(
            label=mark("Customer's phone"), widget=forms.TextInput({"type": "tel"})
        )
        use_region(phone, organization.default_region)
        services_offered: Any = self.fields["service_type"]
        services_offered.queryset = ServiceType.objects.of(organization).filter(is_active=True)
        technicians: Any = self.fields["preferred_technician"]
        technicians.queryset = Technician.objects.of(organization).filter(is_active=True).order_by("name")
        add_window_fields(self, organization.time_zone)
        self.order_fields([*list(self.fields)[:6], *WINDOW_FIELDS])
        for field in self.fields.values():
            translate_field(field)
            field.widget.attrs |= {"autocomplete": "off"}

    def clean(self) -> dict[str, Any]:
        values = super().clean() or self.cleaned_data
        clean_window(self, values)
        return values

    def submission(self) -> dict[str, Any]:
        """Return the form as `accept_submission` expects it."""
        left_out = {"nonce", "window", *WINDOW_FIELDS}
        data = {name: value for name, value in self.cleaned_data.items() if name not in left_out}
        window = self.cleaned_data["window"]
        return data | {
            "window_start": window and window.start,
            "window_end": window and window.end,
            "customer_phone": data["customer_phone"].as_e164,
            "address": " ".join(data["address"].split()),
        }


@require_http_methods(["GET", "POST"])
@console_view
def new_job(request: HttpRequest) -> HttpResponse:
    """Show the form. On POST, accept the request and show its job as soon as it exists."""
    organization = request.organization
    if request.method == "GET":
        return _render_form(request, NewJobForm(organization=organization, initial={"nonce": uuid4()}))
    form = NewJobForm(request.POST, organization=organization)
    try:
        submission_id = _accept(request, form)
    except views_base.InvalidForm:
        return _render_form(request, form, status=422)
    except idempotency.KeyReused:
        form.data = {**request.POST.dict(), "nonce": str(uuid4())}
        form.add_error(None, _("This form has already created a job. Submit it again to create another one."))
        return _render_form(request, form, status=409)
    address = reverse("console:new_job_made", args=[submission_id])
    if not views_base.is_fragment(request):
        return HttpResponseRedirect(address)
    return views_base.render_fragment(
        request, "console/board/_new_job_wait.html", {"address": address, "submission_id": submission_id}
    )


@require_http_methods(["POST"])
@console_view
def describe_request(request: HttpRequest) -> HttpResponse:
    """Render the customer's earlier jobs and the technicians who would be called. Stores nothing."""
    form = NewJobForm(request.POST, organization=request.organization)
    form.is_valid()
    phone = form.cleaned_data.get("customer_phone")
    context = {
        "earlier": job_panel.find_earlier_jobs(request.organization, phone.as_e164) if phone else [],
        "is_phone_known": phone is not None,
        "nearby": find_technicians(request.organization, form.cleaned_data),
    }
    return views_base.render_fragment(request, "console/board/_new_job_facts.html", context)


@require_GET
@console_view
def show_made_job(request: HttpRequest, submission_id: int) -> HttpResponse:
    """Show the submission's job on the board. Until it exists, a fragment has no content and a page no job."""
    submission = get_object_or_404(Submission.objects.of(request.organization), pk=submission_id)
    job_id = (
        Job.objects.of(request.organization).filter(submission=submission).values_list("pk", flat=True).first()
    )
    board = reverse("console:board")
    if not views_base.is_fragment(request):
        return HttpResponseRedirect(f"{board}?job={job_id}" if job_id else board)
    if job_id is None:
        return HttpResponse(status=204)
    job = job_panel.job_of(request, job_id)
    answer = views_base.render_fragment(request, "console/board/_drawer.html", job_panel.build_panel(request, job))
    answer["HX-Push-Url"] = f"{board}?job={job_id}"
    return views_base.with_note(answer, _("Job #{job} created.").format(job=job_id))


def find_technicians(organization: Organization, entered: dict[str, Any]) -> dict[str, Any] | None:
    """Describe who would be called for this request now, or why nobody would. None until enough is entered."""
    service, address = entered.get("service_type"), entered.get("address")
    if service is None or not address:
        return None
    position, reason = _locate(organization, address)
    if position is None:
        return {"reason": reason}
    job = Job(
        organization=organization,
        service_type=service,
        priority=entered.get("priority") or Priority.NORMAL,
        preferred_technician=entered.get("preferred_technician"),
        lat=position[0],
        lng=position[1],
    )
    if window := entered.get("window"):
        job.window_start, job.window_end = window.start, window.end
    services.load_road_times(job)
    found = services.find_candidates(job)
    return {
        "fit": found.fit,
        "first": next((row.technician for row in found.ranked if row.technician.is_in), None),
        "radius_m": found.radius_m,
        "may_widen": found.may_widen,
        "hold": services.describe_hold(job),
    }


def _locate(organization: Organization, address: str) -> tuple[tuple[float, float] | None, str]:
    """Return the position of the address, or why it is unknown. Geocoded once for all changes of the form."""
    name = f"new-job:{organization.pk}:{sha256(address.encode()).hexdigest()}"
    if (found := cache.get(name)) is None:
        place, reason = geocoding.geocode_with_reason(
            lat=None, lng=None, address=address, organization=organization
        )
        found = [place and [place.lat, place.lng], reason]
        cache.set(name, found, LOCATED_S)
    position, reason = found
    return (tuple(position) if position else None), reason


def _accept(request: HttpRequest, form: NewJobForm) -> int:
    """Store the submission and return its id. Raises InvalidForm, and KeyReused if its values changed."""
    entered = {name: value for name, value in request.POST.items() if name in form.fields and name != "nonce"}

    def make() -> tuple[int, dict[str, Any]]:
        if not form.is_valid():
            raise views_base.InvalidForm
        submission = services.accept_submission(
            request.organization,
            form.submission(),
            raw=entered,
            actor=request.actor,
            idempotency_key=f"{ENDPOINT}:{form.cleaned_data['nonce']}",
        )
        return 202, {"id": submission.pk}

    try:
        nonce = str(UUID(request.POST.get("nonce", "")))
    except ValueError:
        nonce = ""  # the form is invalid without one
    return int(idempotency.run_once(request.organization.pk, ENDPOINT, nonce, entered, make)[1]["id"])


def _render_form(request: HttpRequest, form: NewJobForm, *, status: int = 200) -> HttpResponse:
    context = {"form": form, "has_services": form.fields["service_type"].queryset.exists()}  # type: ignore[attr-defined]
    if views_base.is_fragment(request):
        return views_base.render_fragment(request, "console/board/_new_job.html", context, status=status)
    return views_base.render_page(
        request, "console/board/new_job.html", {**context, "current": "board"}, status=status
    )
