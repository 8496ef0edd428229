"""The public form of an organization: /f/<slug>/, and the same for a frame on its own site: /f/<slug>/embed/.

Against machines: a field that people do not see, a signed moment at which the form was given out (nobody fills it
in within two seconds), and limits per address and organization. Nothing is thrown away in silence: who is taken
for a machine by mistake is asked again."""

from __future__ import annotations

import secrets
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.clickjacking import xframe_options_exempt
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_http_methods

from accounts import throttling
from accounts.models import Organization
from dispatch.core import clock, idempotency
from dispatch.core.events import Actor
from dispatch.jobs import links
from dispatch.jobs.models import PublicForm, Submission
from dispatch.jobs.pages.common import address_of, private
from dispatch.jobs.pages.customer_form import CustomerForm
from dispatch.jobs.services import accept_submission

ENDPOINT = "public-form"
# How long a form that was given out may be sent, and how soon no person has filled it in.
GOOD_FOR = timedelta(hours=24)
QUICKEST = timedelta(seconds=2)
CUSTOMER = Actor("customer", None, "Public form")


class Asked(Exception):
    """The form is shown again, with this sentence above it; `status` of the answer."""

    def __init__(self, sentence: str, status: int = 400, wait_s: int = 0) -> None:
        self.status, self.wait_s = status, wait_s
        super().__init__(sentence)


# Exempt from the CSRF check: nobody is signed in, and in a frame on another site there is no cookie to compare.
@csrf_exempt
@require_http_methods(["GET", "HEAD", "POST"])
def form_page(request: HttpRequest, slug: str) -> HttpResponse:
    return private(_form(request, _public(slug), embedded=False))


@csrf_exempt
@xframe_options_exempt
@require_http_methods(["GET", "HEAD", "POST"])
def embedded_form(request: HttpRequest, slug: str) -> HttpResponse:
    public = _public(slug)
    return private(_form(request, public, embedded=True), frames=public.frame_ancestors())


@require_http_methods(["GET", "HEAD"])
def thanks_page(request: HttpRequest, slug: str, token: str) -> HttpResponse:
    return private(_thanks(request, _public(slug), token, embedded=False))


@xframe_options_exempt
@require_http_methods(["GET", "HEAD"])
def embedded_thanks(request: HttpRequest, slug: str, token: str) -> HttpResponse:
    public = _public(slug)
    return private(_thanks(request, public, token, embedded=True), frames=public.frame_ancestors())


def _public(slug: str) -> PublicForm:
    found: PublicForm | None = (
        PublicForm.objects.select_related("organization")
        .filter(organization__slug=slug, organization__is_active=True, is_on=True)
        .first()
    )
    if found is None:
        raise Http404
    return found


def _form(request: HttpRequest, public: PublicForm, *, embedded: bool) -> HttpResponse:
    organization = public.organization
    if request.method != "POST":
        given = {"service": request.GET.get("service", "")[:64]}
        form = CustomerForm(organization=organization, public=public, initial=given)
        return _show(request, public, form, _ticket(organization), embedded=embedded)
    form = CustomerForm(request.POST, organization=organization, public=public)
    ticket = request.POST.get("ticket", "")
    try:
        nonce = _checked(ticket, organization, request)
        if not form.is_valid():
            raise Asked("Please look at what is marked below.")
        submission_id = _accept(public, form, nonce, request)
    except Asked as asked:
        fresh = ticket if asked.status == 400 and _is_good(ticket, organization) else _ticket(organization)
        response = _show(request, public, form, fresh, embedded=embedded, problem=str(asked), status=asked.status)
        if asked.wait_s:
            response["Retry-After"] = str(asked.wait_s)
        return response
    token = links.status_path(submission_id).rstrip("/").rsplit("/", 1)[-1]
    name = "pages:embed_thanks" if embedded else "pages:thanks"
    return HttpResponseRedirect(reverse(name, args=[organization.slug, token]), status=303)


def _accept(public: PublicForm, form: CustomerForm, nonce: str, request: HttpRequest) -> int:
    """The id of the submission: the same for the same form sent twice."""
    organization = public.organization
    raw = {name: value for name, value in request.POST.items() if name not in ("ticket", "website")}

    def make() -> tuple[int, dict[str, Any]]:
        _within_limits(public, request)  # a repeat costs nothing
        submission = accept_submission(
            organization, form.submission(), raw=raw, actor=CUSTOMER, idempotency_key=f"{ENDPOINT}:{nonce}"
        )
        return 202, {"id": submission.pk}

    try:
        return int(idempotency.remember(organization.pk, ENDPOINT, nonce, raw, make)[1]["id"])
    except idempotency.KeyReused:
        raise Asked(
            "This form was sent already. Check it, and send it again if this is another request.", 409
        ) from None


def _within_limits(public: PublicForm, request: HttpRequest) -> None:
    limits = (
        (f"form:{address_of(request)}", settings.PUBLIC_FORM_RATE),
        (f"form:organization:{public.organization_id}", f"{public.per_hour}/hour"),
    )
    for name, rate in limits:
        taken = throttling.take(name, throttling.parse(rate))
        if taken.wait_ms:
            wait_s = -(-taken.wait_ms // 1000)
            raise Asked("Too many requests came in just now. Please try again later, or call us.", 429, wait_s)


def _ticket(organization: Organization) -> str:
    """What a form carries when it is given out: for whom, when, and a number of its own."""
    now = int(clock.now().timestamp())
    return links.sign("form", [organization.pk, now, secrets.randbits(60)], GOOD_FOR)


def _checked(ticket: str, organization: Organization, request: HttpRequest) -> str:
    """The ticket's own number. Raises Asked."""
    try:
        owner, given_at, number = links.read("form", ticket, 3)
    except links.BadLink:
        raise Asked("The page was open for too long. Please send it once more.") from None
    if owner != organization.pk:
        raise Asked("Please send the form once more.")
    if request.POST.get("website"):
        raise Asked("Please leave the field “Website” empty: it is there for machines.")
    if clock.now().timestamp() - given_at < QUICKEST.total_seconds():
        raise Asked("That was quick. Please check the form and send it once more.")
    return str(number)


def _is_good(ticket: str, organization: Organization) -> bool:
    try:
        return links.read("form", ticket, 3)[0] == organization.pk
    except links.BadLink:
        return False


def _show(
    request: HttpRequest,
    public: PublicForm,
    form: CustomerForm,
    ticket: str,
    *,
    embedded: bool,
    problem: str = "",
    status: int = 200,
) -> HttpResponse:
    context = {
        "organization": public.organization,
        "public": public,
        "form": form,
        "ticket": ticket,
        "embedded": embedded,
        "problem": problem,
        "show_trap": bool(request.POST.get("website")),
        "has_services": form.has_services,
    }
    return render(request, "pages/form.html", context, status=status)


def _thanks(request: HttpRequest, public: PublicForm, token: str, *, embedded: bool) -> HttpResponse:
    try:
        submission: Submission = links.submission_of(token)
    except links.BadLink:
        raise Http404 from None
    if submission.organization_id != public.organization_id:
        raise Http404
    context = {
        "organization": public.organization,
        "public": public,
        "submission": submission,
        "status_url": reverse("pages:status", args=[token]),
        "embedded": embedded,
    }
    return render(request, "pages/thanks.html", context)
