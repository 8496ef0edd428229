"""The page on which an invited person chooses a password, and what every page of the admin knows."""

from typing import Any

from django.conf import settings
from django.contrib import admin
from django.contrib.auth.forms import SetPasswordForm
from django.contrib.auth.views import PasswordResetConfirmView
from django.http import HttpRequest
from django.urls import reverse_lazy
from unfold.widgets import UnfoldAdminPasswordWidget

from accounts import demo
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


class SetPasswordView(PasswordResetConfirmView):
    """Opened from a link that an Admin hands over; signs nobody in by itself."""

    form_class = NewPasswordForm
    template_name = "set_password.html"
    success_url = reverse_lazy("admin:login")

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        return {**admin.site.each_context(self.request), **super().get_context_data(**kwargs)}
