"""Administer what one organization may hold and request. Only superusers change it; its Admins see it."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest
from django.utils.translation import gettext

from accounts import limits, services
from accounts.admin.base import EVERYTHING, VIEW, OwnedAdmin
from accounts.models import OrganizationLimits
from dispatch.core.labels import label


@admin.register(OrganizationLimits)
class OrganizationLimitsAdmin(OwnedAdmin):
    """Administer an organization's limits. An empty field uses the installation's limit; 0 is no limit."""

    subject = "limits"
    entries_name = label("limits set by the operator")
    admin_may = VIEW
    superuser_may = EVERYTHING - {"delete"}
    list_display = ["organization", *limits.LABELS]
    fields = list(limits.LABELS)

    def get_form(self, request: HttpRequest, obj: Any = None, change: bool = False, **kwargs: Any) -> Any:
        form = super().get_form(request, obj, change, **kwargs)
        for name in limits.LABELS:
            if field := form.base_fields.get(name):
                default = limits.default_limit(name)
                used = f"{default:,}" if default else gettext("no limit")
                field.help_text = gettext("{about} Empty: {default}. 0: no limit.").format(
                    about=field.help_text, default=used
                )
        return form

    def save_model(self, request: HttpRequest, obj: OrganizationLimits, form: Any, change: bool) -> None:
        services.change_limits(obj, actor=request.actor)
