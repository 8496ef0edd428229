"""Serve the pages for joining and choosing a password, and the context of every admin page."""

from typing import Any

from django import forms
from django.conf import settings
from django.contrib import admin
from django.contrib.auth.forms import SetPasswordForm
from django.contrib.auth.views import PasswordResetConfirmView, redirect_to_login
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse, reverse_lazy
from django.utils.translation import gettext_lazy as _
from django.views import View
from phonenumber_field.formfields import PhoneNumberField

from accounts import demo_logins, invitations, services
from accounts.invitations import Invitation
from accounts.models import User
from accounts.phone_inputs import PhoneInput, use_region
from accounts.sso import sessions as sso
from dispatch.core.api.problems import Conflict


def admin_context(request: HttpRequest) -> dict[str, Any]:
    """Return the demo logins that exist, for the sign-in page of a development machine. Empty anywhere else."""
    if not settings.DEVELOPMENT or request.user.is_authenticated:
        return {}
    people = User.objects.filter(email__in=[login.email for login in demo_logins.LOGINS], is_active=True).order_by(
        "pk"
    )
    return {"demo_logins": [person.email for person in people], "demo_password": demo_logins.PASSWORD}


class DetailsForm(forms.Form):
    """Ask the person joining to confirm their name and phone."""

    name = forms.CharField(max_length=120, label=_("Your name"), widget=forms.TextInput({"autocomplete": "name"}))

    def __init__(self, invitation: Invitation, data: Any = None) -> None:
        initial = {"name": invitation.suggested_name, "phone": invitation.suggested_phone}
        super().__init__(data, initial=initial)
        phone = self.fields["phone"] = PhoneNumberField(
            required=False,
            label=_("Your phone"),
            help_text=_("Alerts from all your organizations go to this number. Correct it if it isn't yours."),
            widget=PhoneInput(attrs={"autocomplete": "tel"}),
        )
        use_region(phone, invitation.membership.organization.default_region)

    @property
    def confirmed(self) -> dict[str, str]:
        """Return the arguments of `services.join_organization`."""
        phone = self.cleaned_data["phone"]
        return {"name": self.cleaned_data["name"], "phone": phone.as_e164 if phone else ""}


class JoinView(View):
    """Show the page behind an invitation link.

    The person confirms their name and phone, and joins. They choose a password if the link may set one (see
    `invitations`). The page does not sign anyone in.
    """

    def dispatch(self, request: HttpRequest, token: str) -> HttpResponse:
        invitation = invitations.read_invitation(token)
        if invitation is None:
            return self._page(request, None, status=404)
        if invitation.may_set_password:
            return self._with_password(request, invitation)
        if not request.user.is_authenticated:
            return redirect_to_login(request.get_full_path(), reverse("admin:login"))
        if sso.is_confined(request):  # another organization's provider does not join for the person
            return TemplateResponse(request, "sso/confined.html", {"invitation": invitation}, status=403)
        if request.user != invitation.user:
            return self._page(request, invitation, somebody_else=True, status=403)
        details = DetailsForm(invitation, request.POST if request.method == "POST" else None)
        if not details.is_valid():
            return self._page(request, invitation, details=details)
        return self._join(request, invitation, "/", **details.confirmed)

    def _with_password(self, request: HttpRequest, invitation: Invitation) -> HttpResponse:
        given = request.POST if request.method == "POST" else None
        form, details = SetPasswordForm(invitation.user, given), DetailsForm(invitation, given)
        if not (form.is_valid() & details.is_valid()):  # run both, so that both show their errors
            return self._page(request, invitation, form=form, details=details)
        password = form.cleaned_data["new_password1"]
        return self._join(request, invitation, reverse("admin:login"), password=password, **details.confirmed)

    def _join(self, request: HttpRequest, invitation: Invitation, target: str, **confirmed: str) -> HttpResponse:
        """Join and go to `target`, or open the link again if the invitation changed meanwhile."""
        try:
            services.join_organization(invitation, **confirmed)
        except Conflict:
            return HttpResponseRedirect(request.path)
        return HttpResponseRedirect(target)

    def _page(
        self, request: HttpRequest, invitation: Invitation | None, status: int = 200, **more: Any
    ) -> HttpResponse:
        context = {**admin.site.each_context(request), "invitation": invitation, **more}
        headers = {"Cache-Control": "no-store", "Referrer-Policy": "same-origin"}
        return TemplateResponse(request, "join.html", context, status=status, headers=headers)


class SetPasswordView(PasswordResetConfirmView):
    """Set a password from a link that was mailed or passed on by an admin. The page does not sign anyone in."""

    token_generator = services.password_tokens
    template_name = "set_password.html"
    success_url = reverse_lazy("admin:login")

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        return {**admin.site.each_context(self.request), **super().get_context_data(**kwargs)}
