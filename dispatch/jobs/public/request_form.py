"""Serve the public request form of an organization: /f/<slug>/, and /f/<slug>/embed/ for a frame on its website.

Spam protection: a honeypot field, a signed issue time (nobody fills in the form within two seconds), and rate
limits per address and organization. Nothing is discarded silently: a person mistaken for a bot sees the form again
with an explanation.
"""

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

from accounts.auth import throttling
from accounts.models import Organization
from dispatch.core import clock, languages
from dispatch.core.api import idempotency
from dispatch.core.events import Actor
from dispatch.core.languages import gettext as _
from dispatch.jobs import signed_links
from dispatch.jobs.models import PublicForm, Submission
from dispatch.jobs.public.common import language_choices, limits_of_networks, requested_language, without_caching
from dispatch.jobs.public.forms import CustomerForm
from dispatch.jobs.services import accept_submission

ENDPOINT = "public-form"
# How long an issued form is valid, and the minimum time that a person needs to fill it in.
FORM_LIFETIME = timedelta(hours=24)
MIN_FILL_TIME = timedelta(seconds=2)
CUSTOMER = Actor("customer", None, "Public form")


class FormRejected(Exception):
    """Raised to show the form again with this message and the HTTP status `status`."""

    def __init__(self, sentence: str, status: int = 400, wait_s: int = 0) -> None:
        self.status, self.wait_s = status, wait_s
        super().__init__(sentence)


# Exempt from the CSRF check: nobody is signed in, and a frame on another site has no cookie to compare.
@csrf_exempt
@require_http_methods(["GET", "HEAD", "POST"])
def form_page(request: HttpRequest, slug: str) -> HttpResponse:
    """Show the form; on POST, store the submission."""
    public = _load_form(slug)
    with languages.override(_language_of(request, public)):
        return without_caching(_handle_form(request, public, embedded=False))


@csrf_exempt
@xframe_options_exempt
@require_http_methods(["GET", "HEAD", "POST"])
def embedded_form(request: HttpRequest, slug: str) -> HttpResponse:
    """Show and process the form for a frame on one of the allowed websites."""
    public = _load_form(slug)
    with languages.override(_language_of(request, public)):
        return without_caching(_handle_form(request, public, embedded=True), frames=public.frame_ancestors())


@require_http_methods(["GET", "HEAD"])
def thanks_page(request: HttpRequest, slug: str, token: str) -> HttpResponse:
    """Confirm the request and link to its status page."""
    return without_caching(_render_thanks(request, _load_form(slug), token, embedded=False))


@xframe_options_exempt
@require_http_methods(["GET", "HEAD"])
def embedded_thanks(request: HttpRequest, slug: str, token: str) -> HttpResponse:
    """Show the confirmation for a frame on one of the allowed websites."""
    public = _load_form(slug)
    return without_caching(_render_thanks(request, public, token, embedded=True), frames=public.frame_ancestors())


def _language_of(request: HttpRequest, public: PublicForm) -> str:
    """Return the language of the form: the chosen one, else the one it was shown in, else the browser's."""
    for name in ("switch", "language"):
        if (code := request.POST.get(name, "")) in languages.CODES:
            return code
    return requested_language(request, public.organization.language)


def _load_form(slug: str) -> PublicForm:
    form: PublicForm | None = (
        PublicForm.objects.select_related("organization")
        .filter(organization__slug=slug, organization__is_active=True, is_on=True)
        .first()
    )
    if form is None:
        raise Http404
    return form


def _handle_form(request: HttpRequest, public: PublicForm, *, embedded: bool) -> HttpResponse:
    organization = public.organization
    if request.method != "POST":
        initial = {"service": request.GET.get("service", "")[:64]}
        form = CustomerForm(organization=organization, public=public, initial=initial)
        return _render_form(request, public, form, _make_form_token(organization), embedded=embedded)
    ticket = request.POST.get("ticket", "")
    if request.POST.get("switch", "") in languages.CODES:  # show what was entered in the other language
        form = CustomerForm(initial=request.POST.dict(), organization=organization, public=public)
        next_ticket = ticket if _is_valid_ticket(ticket, organization) else _make_form_token(organization)
        return _render_form(request, public, form, next_ticket, embedded=embedded)
    form = CustomerForm(request.POST, organization=organization, public=public)
    try:
        nonce = _check_form_token(ticket, organization, request)
        submission_id = _accept_form(public, form, nonce, request)
    except FormRejected as rejection:
        next_ticket = (
            ticket
            if rejection.status == 400 and _is_valid_ticket(ticket, organization)
            else _make_form_token(organization)
        )
        response = _render_form(
            request, public, form, next_ticket, embedded=embedded, problem=str(rejection), status=rejection.status
        )
        if rejection.wait_s:
            response["Retry-After"] = str(rejection.wait_s)
        return response
    token = signed_links.status_path(submission_id).rstrip("/").rsplit("/", 1)[-1]
    name = "pages:embed_thanks" if embedded else "pages:thanks"
    return HttpResponseRedirect(reverse(name, args=[organization.slug, token]), status=303)


def _accept_form(public: PublicForm, form: CustomerForm, nonce: str, request: HttpRequest) -> int:
    """Store the submission and return its id. The same form sent twice returns the same id.

    The form is validated once: what was accepted stays so, even if its arrival window is over by now. Raises
    FormRejected.
    """
    organization = public.organization
    # Without any other field that a stranger may add.
    raw = {name: value for name, value in request.POST.items() if name in form.fields}

    def make() -> tuple[int, dict[str, Any]]:
        if not form.is_valid():
            raise FormRejected(_("Please fix the errors below."))
        _check_rate_limits(public, request)  # sending the same form again does not count
        submission = accept_submission(
            organization, form.submission(), raw=raw, actor=CUSTOMER, idempotency_key=f"{ENDPOINT}:{nonce}"
        )
        return 202, {"id": submission.pk}

    try:
        return int(idempotency.run_once(organization.pk, ENDPOINT, nonce, raw, make)[1]["id"])
    except idempotency.KeyReused:
        raise FormRejected(
            _("You already sent this form. To make another request, check your details and send again."), 409
        ) from None


def _check_rate_limits(public: PublicForm, request: HttpRequest) -> None:
    rate = throttling.parse_rate(settings.PUBLIC_FORM_RATE)
    limits = [(f"form:{network}", allowed) for network, allowed in limits_of_networks(request, rate)]
    hourly = throttling.parse_rate(f"{public.per_hour}/hour")
    limits.append((f"form:organization:{public.organization_id}", hourly))
    if wait_ms := max(taken.wait_ms for taken in throttling.take_tokens(*limits)):
        raise FormRejected(
            _("We're receiving too many requests right now. Please try again later, or call us."),
            429,
            -(-wait_ms // 1000),
        )


def _make_form_token(organization: Organization) -> str:
    """Return the token of a newly issued form: signed organization, issue time and a random nonce."""
    now = int(clock.now().timestamp())
    return signed_links.sign_token("form", [organization.pk, now, secrets.randbits(60)], FORM_LIFETIME)


def _check_form_token(ticket: str, organization: Organization, request: HttpRequest) -> str:
    """Return the nonce of the form's token. Raises FormRejected if the token or the honeypot fails."""
    try:
        owner, given_at, number = signed_links.read_token("form", ticket, 3)
    except signed_links.InvalidLink:
        raise FormRejected(_("This page expired. Please send the form again.")) from None
    if owner != organization.pk:
        raise FormRejected(_("Please send the form again."))
    if request.POST.get("website"):
        raise FormRejected(_("Please leave the “Website” field empty (spam protection)."))
    if clock.now().timestamp() - given_at < MIN_FILL_TIME.total_seconds():
        raise FormRejected(_("Please check your details and send again."))
    return str(number)


def _is_valid_ticket(ticket: str, organization: Organization) -> bool:
    try:
        return signed_links.read_token("form", ticket, 3)[0] == organization.pk
    except signed_links.InvalidLink:
        return False


def _render_form(
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
        "languages": language_choices(),
    }
    return render(request, "pages/form.html", context, status=status)


def _render_thanks(request: HttpRequest, public: PublicForm, token: str, *, embedded: bool) -> HttpResponse:
    try:
        submission: Submission = signed_links.submission_of(token)
    except signed_links.InvalidLink:
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
    with languages.override(submission.customer_language):
        return render(request, "pages/thanks.html", context)
