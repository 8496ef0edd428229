"""Sign users in with the second factor; list and end their sessions, and revoke their API keys."""

from __future__ import annotations

from typing import Any

from allauth.account.internal.flows.login import clear_authentication_records, perform_password_login
from allauth.account.internal.stagekit import clear_login
from allauth.account.models import Login
from allauth.account.utils import get_next_redirect_url
from allauth.mfa.webauthn.views import LoginWebAuthnView, RemoveWebAuthnView
from allauth.usersessions.models import UserSession
from django.contrib import admin, messages
from django.contrib.auth import REDIRECT_FIELD_NAME, logout, views
from django.contrib.auth.decorators import login_required
from django.core.exceptions import ValidationError
from django.db import transaction
from django.http import HttpRequest, HttpResponse, HttpResponseBase, HttpResponseRedirect
from django.shortcuts import get_object_or_404
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.decorators import method_decorator
from django.views import View
from django.views.decorators.cache import never_cache
from unfold.forms import AuthenticationForm

from accounts import invitations, services
from accounts.auth import sessions
from accounts.auth.adapters import MFAAdapter
from accounts.auth.passwords import MAX_PASSWORD_LENGTH
from accounts.auth.user_agents import describe_user_agent
from accounts.models import ApiKey, User
from accounts.tenancy import user_of
from dispatch.core.ids import read_id
from dispatch.core.languages import gettext as _
from dispatch.core.languages import mark

# The element of the sign-in page that has its error.
ERROR_ID = "sign-in-error"
# A text of the admin theme's sign-in page, which the theme does not translate.
THEME_TEXTS = (mark("Welcome back to"),)


class SignInForm(AuthenticationForm):
    """Refuse values that no account can have before they are looked up, hashed and counted.

    Django's form only shows its limit of the email address.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["username"].label = _("Email")

    def full_clean(self) -> None:
        """Validate. Describe the email, which is focused, by the error that belongs to no single field."""
        super().full_clean()
        if self.non_field_errors():
            self.fields["username"].widget.attrs["aria-describedby"] = ERROR_ID

    def confirm_login_allowed(self, user: Any) -> None:
        """Refuse people without an active membership, except with the link of an invitation of their own."""
        if not invitations.is_own_invitation(get_next_redirect_url(self.request) or "", user):
            super().confirm_login_allowed(user)

    def get_invalid_login_error(self) -> ValidationError:
        return ValidationError(
            _("The email or password is wrong. Check both, and try again."), code="invalid_login"
        )

    def clean_username(self) -> str:
        return self._check_length("username", self.fields["username"].max_length)

    def clean_password(self) -> str:
        return self._check_length("password", MAX_PASSWORD_LENGTH)

    def _check_length(self, name: str, most: int) -> str:
        value: str = self.cleaned_data[name]
        if len(value) > most:
            raise self.get_invalid_login_error()
        return value


class SignInView(views.LoginView):
    """Check email and password as the admin does, then continue with django-allauth's stages."""

    authentication_form = SignInForm
    template_name = "admin/login.html"

    def form_valid(self, form: Any) -> HttpResponse:
        if self.request.user.is_authenticated:  # the page of the second factor redirects signed-in users
            logout(self.request)
        # Factors that somebody else entered in this browser without signing in do not count.
        clear_login(self.request)
        clear_authentication_records(self.request)
        # The session gets no email address: erasing a person could not find it there.
        login = Login(user=form.get_user(), redirect_url=self.get_success_url())
        return perform_password_login(self.request, {}, login)


def sign_in(request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponseBase:
    """Serve the sign-in page (AdminSite.login)."""
    site = admin.site
    if request.method == "GET":
        clear_login(request)  # an unfinished sign-in
    if request.method == "GET" and site.has_permission(request):
        return HttpResponseRedirect(reverse("admin:index"))
    context = {
        **site.each_context(request),
        "title": _("Log in"),
        "subtitle": None,
        "app_path": request.get_full_path(),
        "username": request.user.get_username(),
        "without_error_note": True,
        "note_id": ERROR_ID,
        **(extra_context or {}),
    }
    if REDIRECT_FIELD_NAME not in request.GET and REDIRECT_FIELD_NAME not in request.POST:
        context[REDIRECT_FIELD_NAME] = reverse("admin:index")
    return SignInView.as_view(extra_context=context)(request)


class PasskeySignInView(LoginWebAuthnView):
    """Sign in with a passkey, also in place of a session that may open nothing, such as a former member's."""

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        if request.user.is_authenticated and not admin.site.has_permission(request):
            logout(request)
        return super().dispatch(request, *args, **kwargs)


class RemovePasskeyView(RemoveWebAuthnView):
    """Remove a passkey, unless it is the last factor of a user who needs one."""

    def form_valid(self, form: Any) -> HttpResponse:
        with transaction.atomic():
            User.objects.select_for_update(no_key=True).get(pk=user_of(self.request).pk)
            if not MFAAdapter().can_delete_authenticator(self.get_object()):
                messages.error(
                    self.request,
                    _("You need a second factor here. Add another one before you remove this passkey."),
                )
                return HttpResponseRedirect(self.get_success_url())
            return super().form_valid(form)


@method_decorator([login_required, never_cache], name="dispatch")
class SessionsView(View):
    """List the user's sessions and the API keys they created, and end them."""

    def get(self, request: HttpRequest) -> HttpResponse:
        user = user_of(request)
        UserSession.objects.create_from_request(request)
        listed = sessions.list_sessions(user)
        for row in listed:
            row.browser = describe_user_agent(row.user_agent)
        keys = ApiKey.objects.filter(created_by=user, revoked_at=None).select_related("organization")
        context = {"sessions": listed, "current": request.session.session_key, "keys": keys}
        return TemplateResponse(request, "usersessions/usersession_list.html", context)

    def post(self, request: HttpRequest) -> HttpResponse:
        user, given = user_of(request), request.POST
        if "others" in given:
            sessions.end_other_sessions(request, user, actor=request.actor)
            messages.success(request, _("All other sessions were ended."))
        elif "key" in given:
            own = ApiKey.objects.filter(created_by=user)
            key = get_object_or_404(own, pk=read_id(given["key"]))
            services.revoke_api_key(key.pk, actor=request.actor)
            messages.success(request, _("The API key {key} was revoked.").format(key=key))
        else:
            row = get_object_or_404(UserSession, user=user, pk=read_id(given.get("session")))
            if row.session_key == request.session.session_key:
                sessions.end_session(user, row, actor=request.actor)
                logout(request)
                return HttpResponseRedirect(reverse("account_login"))
            sessions.end_session(user, row, actor=request.actor)
            messages.success(request, _("The session was ended."))
        return HttpResponseRedirect(reverse("usersessions_list"))
