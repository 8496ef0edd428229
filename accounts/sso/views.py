"""Serve single sign-on: choose the organization, go to its provider, come back, and try a configuration."""

from __future__ import annotations

from typing import Any

import structlog
from allauth.account.internal.flows.login import clear_authentication_records, perform_login
from allauth.account.internal.stagekit import clear_login
from allauth.account.models import Login
from django import forms
from django.conf import settings
from django.contrib.auth import REDIRECT_FIELD_NAME, logout
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.decorators import method_decorator
from django.utils.http import url_has_allowed_host_and_scheme, urlencode
from django.utils.translation import gettext_lazy as _
from django.views import View
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET

from accounts.auth import throttling
from accounts.models import Membership, User
from accounts.sso import sessions, starts
from accounts.sso.admission import Admission, NotAdmitted, admit_identity
from accounts.sso.models import IdentityProvider
from accounts.sso.provider import OrganizationProvider, SignInFailed, callback_url, read_identity
from accounts.sso.services import record_trial
from dispatch.core.web.client_addresses import limit_key

log = structlog.get_logger(__name__)

SIGN_IN, TRY = "login", "try"
SHOWN_CLAIMS = ("iss", "sub", "email", "email_verified", "name", "amr", "acr")


class StartForm(forms.Form):
    """Ask for the organization whose provider signs the person in."""

    address = forms.CharField(
        max_length=254,
        label=_("Your email address or your organization's short name"),
        help_text=_("For example dana@example.com, or desert-air."),
        widget=forms.TextInput(
            attrs={"autofocus": True, "autocapitalize": "none", "spellcheck": "false", "autocomplete": "username"}
        ),
    )

    provider: IdentityProvider

    def clean_address(self) -> str:
        """Find the provider by the slug of the organization, or by an email address of a verified domain.

        Both are found in upper or lower case. Whether the person has an account is not disclosed.
        """
        address: str = self.cleaned_data["address"].strip()
        active = usable_providers()
        if "@" in address:
            domain = address.lower().rpartition("@")[2]
            found = list(active.filter(verified_domains__contains=[domain])[:2])
            ambiguous = _("Several organizations use this domain. Enter your organization's short name.")
        else:
            found = list(active.filter(organization__slug=address))
            found = found or list(active.filter(organization__slug__iexact=address)[:2])
            ambiguous = _(
                "Several organizations have this short name. Enter it with the same upper-case and lower-case "
                "letters."
            )
        if len(found) > 1:
            raise forms.ValidationError(ambiguous)
        if not found:
            raise forms.ValidationError(
                _("There is no single sign-on for this entry. Check it, or sign in with your password.")
            )
        self.provider = found[0]
        return address


@method_decorator(never_cache, name="dispatch")
class StartView(View):
    """Ask for the email address or the organization, then forward the browser.

    The page that forwards is a page of this site, because browsers apply `form-action` to redirects as well.
    """

    def get(self, request: HttpRequest) -> HttpResponse:
        organization = request.GET.get("organization", "")
        form = StartForm(initial={"address": organization} if organization else None)
        return self._page(request, form)

    def post(self, request: HttpRequest) -> HttpResponse:
        if not _is_within_limits(request):
            return _render_too_many_requests(request)
        form = StartForm(request.POST)
        if not form.is_valid():
            return self._page(request, form, status=422)
        next_url = _next_url(request)
        starts.allow_start(request, form.provider, is_trial=False)
        target = reverse("sso_begin", args=[form.provider.pk])
        context = {
            "provider": form.provider,
            "target": f"{target}?{urlencode({REDIRECT_FIELD_NAME: next_url})}" if next_url else target,
        }
        return TemplateResponse(request, "sso/forward.html", context)

    def _page(self, request: HttpRequest, form: StartForm, status: int = 200) -> HttpResponse:
        context = {"form": form, "next": _next_url(request), "hides_navigation": True}
        return TemplateResponse(request, "sso/start.html", context, status=status)


@require_GET
@never_cache
def begin_sign_in(request: HttpRequest, pk: int) -> HttpResponse:
    """Send the browser to the provider. With `try`, an Admin only tries the configuration.

    Only a form of this site leads here (`starts`). Any other link leads to the form.
    """
    is_trial = "try" in request.GET
    rows = IdentityProvider.objects.select_related("organization") if is_trial else usable_providers()
    provider = get_object_or_404(rows, pk=pk)
    if is_trial and not may_try(request, provider):
        raise PermissionDenied
    if not starts.may_start(request, provider, is_trial=is_trial):
        return HttpResponseRedirect(_form_url(request, provider, is_trial=is_trial))
    if not _is_within_limits(request, provider):
        return _render_too_many_requests(request)
    try:
        return OrganizationProvider(request, provider).begin(
            request, TRY if is_trial else SIGN_IN, _next_url(request), user=request.user.pk if is_trial else None
        )
    except SignInFailed as failure:
        return _render_failure(request, provider, failure, is_trial=is_trial)


@require_GET
@never_cache
def finish_sign_in(request: HttpRequest, pk: int) -> HttpResponse:
    """Sign in the person whom the provider's response identifies, or show the result of a trial."""
    provider = get_object_or_404(IdentityProvider.objects.select_related("organization"), pk=pk)
    if not _is_within_limits(request, provider):
        return _render_too_many_requests(request)
    may_see_details = may_try(request, provider)
    try:
        identity = read_identity(request, provider)
    except SignInFailed as failure:
        return _render_failure(request, provider, failure, is_trial=may_see_details)
    if identity.state["process"] == TRY:
        if not may_see_details or identity.state.get("user") != request.user.pk:
            raise PermissionDenied
        return _show_trial(request, provider, identity.claims)
    if not (provider.is_active and provider.organization.is_active):
        return _render_failure(
            request, provider, SignInFailed(str(_("Single sign-on is turned off for this organization.")))
        )
    return _sign_in(request, provider, identity.claims, identity.state.get("next"))


def _form_url(request: HttpRequest, provider: IdentityProvider, *, is_trial: bool) -> str:
    """Return the address of the form that begins the sign-in or the trial."""
    if is_trial:
        return reverse("admin:accounts_identityprovider_change", args=[provider.pk])
    query = {"organization": provider.organization.slug}
    if next_url := _next_url(request):
        query[REDIRECT_FIELD_NAME] = next_url
    return f"{reverse('sso_start')}?{urlencode(query)}"


def usable_providers() -> Any:
    """Return the providers by which people can sign in."""
    rows = IdentityProvider.objects.filter(is_active=True, organization__is_active=True)
    return rows.select_related("organization")


def may_try(request: HttpRequest, provider: IdentityProvider) -> bool:
    """Return whether the signed-in user administers the provider's organization."""
    user = request.user
    if not isinstance(user, User) or getattr(request, "second_factor_step", None):
        return False
    return user.is_superuser or provider.organization_id in user.administered_organization_ids()


def _sign_in(
    request: HttpRequest, provider: IdentityProvider, claims: dict[str, Any], next_url: str | None
) -> HttpResponse:
    opened = sessions.describe_session(provider, claims)
    try:
        with transaction.atomic():
            admission = admit_identity(provider, claims)
            _check_second_factor(provider, admission, opened)
    except NotAdmitted as refusal:
        return _render_failure(request, provider, SignInFailed(str(refusal), refusal.code))
    if request.user.is_authenticated:
        logout(request)
    clear_login(request)
    clear_authentication_records(request)
    starts.end_start(request)
    login = Login(
        user=admission.user,
        redirect_url=next_url or reverse("console:board"),
        signal_kwargs={sessions.SESSION_KEY: opened},
    )
    log.info("sso_signed_in", user=admission.user.pk, organization=provider.organization_id, amr=opened["amr"])
    response: HttpResponse = perform_login(request, login)
    return response


def _check_second_factor(provider: IdentityProvider, admission: Admission, opened: dict[str, Any]) -> None:
    """Refuse a session that could never get the second factor that the organization requires."""
    if opened["second_factor"] or not provider.organization.requires_second_factor:
        return
    if admission.user.second_factor_at is None:
        raise NotAdmitted(
            "no_second_factor",
            _(
                "{organization} requires a second factor, and the identity provider did not report one. "
                "Ask an Admin."
            ).format(organization=provider.organization),
        )


def _show_trial(request: HttpRequest, provider: IdentityProvider, claims: dict[str, Any]) -> HttpResponse:
    """Show what the provider sent and who would be signed in. Store only the time of the trial."""
    refusal, admission = "", None
    opened = sessions.describe_session(provider, claims)
    with transaction.atomic():
        try:
            admission = admit_identity(provider, claims)
            _check_second_factor(provider, admission, opened)
        except NotAdmitted as error:
            refusal = str(error)
        role = ""
        if admission is not None:
            row = Membership.objects.of(provider.organization_id).get(user=admission.user)
            role = row.get_role_display()
        transaction.set_rollback(True)
    record_trial(provider, actor=request.actor)
    context = {
        "provider": provider,
        "claims": [(name, claims.get(name, "not sent")) for name in SHOWN_CLAIMS],
        "admission": admission,
        "role": role,
        "refusal": refusal,
        "opened": opened,
        "back": reverse("admin:accounts_identityprovider_change", args=[provider.pk]),
    }
    return TemplateResponse(request, "sso/trial.html", context)


def _render_failure(
    request: HttpRequest, provider: IdentityProvider, failure: SignInFailed, *, is_trial: bool = False
) -> HttpResponse:
    """Show why the sign-in failed, and how else the person can sign in. An Admin's trial shows the details."""
    log.warning("sso_failed", organization=provider.organization_id, reason=failure.detail[:500])
    context = {
        "provider": provider,
        "text": failure.text,
        "detail": failure.detail[:500] if is_trial else "",
        "callback": callback_url(provider),
        "hides_navigation": True,
    }
    return TemplateResponse(request, "sso/failed.html", context, status=403)


def _is_within_limits(request: HttpRequest, provider: IdentityProvider | None = None) -> bool:
    """Count the request per address and organization. Return whether it is within the limits."""
    buckets = [(f"sso:{limit_key(request)}", throttling.parse_rate(settings.SSO_RATE))]
    if provider is not None:
        rate = throttling.parse_rate(settings.SSO_ORGANIZATION_RATE)
        buckets.append((f"sso-organization:{provider.organization_id}", rate))
    return not any(taken.wait_ms for taken in throttling.take_tokens(*buckets))


def _render_too_many_requests(request: HttpRequest) -> HttpResponse:
    return TemplateResponse(request, "429.html", status=429)


def _next_url(request: HttpRequest) -> str:
    """Return the page of this site to which the sign-in leads; empty: the default."""
    given = request.POST.get(REDIRECT_FIELD_NAME) or request.GET.get(REDIRECT_FIELD_NAME) or ""
    is_safe = url_has_allowed_host_and_scheme(given, {request.get_host()}, require_https=request.is_secure())
    return given if is_safe else ""
