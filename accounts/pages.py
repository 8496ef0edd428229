"""The pages on which people join and choose passwords, and what every page of the admin knows."""

from typing import Any

from django.conf import settings
from django.contrib import admin
from django.contrib.auth.forms import SetPasswordForm
from django.contrib.auth.views import PasswordResetConfirmView, redirect_to_login
from django.db import transaction
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse, reverse_lazy
from django.views import View
from unfold.widgets import UnfoldAdminPasswordWidget

from accounts import demo, invitations, services
from accounts.current import actor_of
from accounts.invitations import Invitation
from accounts.models import User


def admin_context(request: HttpRequest) -> dict[str, Any]:
    """For the sign-in page of a development machine: the demo logins that exist. Nothing anywhere else."""
    if not settings.DEVELOPMENT or request.user.is_authenticated:
        return {}
    people = User.objects.filter(email__in=[login.email for login in demo.LOGINS], is_active=True).order_by("pk")
    return {"demo_logins": [person.email for person in people], "demo_password": demo.PASSWORD}


class NewPasswordForm(SetPasswordForm):
    """Django's, in the admin's look."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for field in self.fields.values():
            field.widget = UnfoldAdminPasswordWidget(attrs={"autocomplete": "new-password"})


class JoinView(View):
    """Opened from the link of an invitation: the person says that they join, choosing a password where the link
    may give one (see `invitations`); signs nobody in by itself."""

    def dispatch(self, request: HttpRequest, token: str) -> HttpResponse:
        invitation = invitations.read(token)
        if invitation is None:
            return self._page(request, None, status=404)
        if invitation.may_set_password:
            return self._with_password(request, invitation)
        if not request.user.is_authenticated:
            return redirect_to_login(request.get_full_path(), reverse("admin:login"))
        if request.user != invitation.user:
            return self._page(request, invitation, somebody_else=True, status=403)
        if request.method != "POST":
            return self._page(request, invitation)
        services.join(invitation, actor=actor_of(invitation.user))
        return HttpResponseRedirect("/")

    def _with_password(self, request: HttpRequest, invitation: Invitation) -> HttpResponse:
        form = NewPasswordForm(invitation.user, request.POST if request.method == "POST" else None)
        if not form.is_bound or not form.is_valid():
            return self._page(request, invitation, form=form)
        with transaction.atomic():
            form.save()
            services.join(invitation, actor=actor_of(invitation.user))
        return HttpResponseRedirect(reverse("admin:login"))

    def _page(
        self, request: HttpRequest, invitation: Invitation | None, status: int = 200, **more: Any
    ) -> HttpResponse:
        context = {**admin.site.each_context(request), "invitation": invitation, **more}
        kept_apart = {"Cache-Control": "no-store", "Referrer-Policy": "no-referrer"}
        return TemplateResponse(request, "join.html", context, status=status, headers=kept_apart)


class SetPasswordView(PasswordResetConfirmView):
    """Opened from a link that was mailed, or that an Admin hands over; signs nobody in by itself."""

    form_class = NewPasswordForm
    template_name = "set_password.html"
    success_url = reverse_lazy("admin:login")

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        return {**admin.site.each_context(self.request), **super().get_context_data(**kwargs)}
