"""Limit sessions to what they may reach, hold back those without the second factor, and set the organization."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable

from asgiref.sync import sync_to_async
from django.contrib.auth.middleware import AuthenticationMiddleware
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils import timezone
from django.utils.functional import SimpleLazyObject
from django.utils.http import urlencode

from accounts import tenancy
from accounts.auth import second_factor, sessions
from accounts.auth.authentication import enter_organization, has_credentials, requested_organization
from accounts.auth.second_factor import Step
from accounts.models import User
from accounts.sso import sessions as sso
from dispatch.core.api.problems import problem_response

SIGN_OUT = {"account_logout", "admin:logout"}
# The names of the URLs that a session may open before it has completed the step.
OPEN_BEFORE = {
    Step.VERIFY: SIGN_OUT | {"mfa_reauthenticate", "mfa_reauthenticate_webauthn"},
    Step.SET_UP: SIGN_OUT | {"account_reauthenticate", "mfa_index", "mfa_activate_totp", "mfa_add_webauthn"},
}

# What a session that an identity provider opened may open under /account/. It never changes factors or passwords.
CONFINED_PREFIX = "/account/"
OPEN_CONFINED = SIGN_OUT | OPEN_BEFORE[Step.VERIFY] | {"account_login", "account_inactive", "usersessions_list"}
SHARED_PAGES = {"usersessions_list"}
# Pages that show times in the organization's time zone.
LOCAL_PREFIXES = ("/admin/", "/account/")


class SessionReachMiddleware(AuthenticationMiddleware):
    """Set `request.user` as Django does, limited to what the session may reach (`sso.sessions`)."""

    def process_request(self, request: HttpRequest) -> None:
        super().process_request(request)
        request.user = SimpleLazyObject(lambda: sso.user_of_session(request))  # type: ignore[assignment]
        request.auser = functools.partial(sync_to_async(sso.user_of_session), request)


class OrganizationMiddleware:
    """Set `request.organization`, `.membership`, `.role` and `.actor`.

    All are None for an anonymous request; the first three are None for a user without an organization. API
    requests get them from authentication instead. The admin and the account pages show times in the organization's
    time zone.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        request.organization = request.membership = request.role = request.actor = None
        if not request.path_info.startswith("/api/") and isinstance(request.user, User):
            request.actor = tenancy.actor_of(request.user)
            with contextlib.suppress(tenancy.NoOrganization):
                enter_organization(
                    request,
                    tenancy.membership_context(request.user, remembered_id=requested_organization(request)[1]),
                )
        with _local_times(request):
            response = self.get_response(request)
        for name, value in getattr(request, "rate_headers", {}).items():
            response[name] = value
        return response


class SecondFactorMiddleware:
    """Hold back a session until its user has set up or entered the second factor (`second_factor.missing_step`).

    Requests with an API key are not affected; sockets check it themselves (`notifications.consumers`).
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        return self.get_response(request)

    def process_view(self, request: HttpRequest, *args: object) -> HttpResponse | None:
        """Return a redirect to the missing step, or a problem for the API; None if nothing is missing."""
        is_api = request.path_info.startswith("/api/")
        if is_api and has_credentials(request):
            return None
        user = request.user
        if not isinstance(user, User):
            return None
        sessions.record_use(request)
        if self._is_out_of_reach(request):
            return TemplateResponse(request, "sso/confined.html", status=403).render()
        step = request.second_factor_step = second_factor.missing_step(user, request.session)
        match = request.resolver_match
        if step is None or (match is not None and match.view_name in OPEN_BEFORE[step]):
            return None
        if step is Step.SET_UP and sso.is_confined(request) and not is_api:
            return TemplateResponse(request, "sso/second_factor.html", status=403).render()
        if is_api:
            return problem_response(403, "second_factor_required", f"Sign in on the site and {step.value} first.")
        page = reverse("mfa_index" if step is Step.SET_UP else "mfa_reauthenticate")
        if request.headers.get("HX-Request") == "true":
            return HttpResponse(status=204, headers={"HX-Redirect": page})
        if step is Step.VERIFY and request.method == "GET":
            page = f"{page}?{urlencode({'next': request.get_full_path()})}"
        return HttpResponseRedirect(page)

    def _is_out_of_reach(self, request: HttpRequest) -> bool:
        """Return whether a session that a provider opened asks for a page of the account as a whole."""
        match = request.resolver_match
        if not sso.is_confined(request) or match is None or not request.path_info.startswith(CONFINED_PREFIX):
            return False
        name = match.view_name
        if name in SHARED_PAGES and not sso.may_change_account(request):
            return True
        return name not in OPEN_CONFINED and not name.startswith("sso_")


def _local_times(request: HttpRequest) -> contextlib.AbstractContextManager[object]:
    if request.organization is None or not request.path_info.startswith(LOCAL_PREFIXES):
        return contextlib.nullcontext()
    return timezone.override(request.organization.time_zone)
