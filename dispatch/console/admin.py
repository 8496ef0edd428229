"""Link the admin to pages of the console."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect

from accounts.admin.extensions import extend_admin
from dispatch.leads.admin.campaigns import CampaignAdmin
from dispatch.leads.models import Campaign


@extend_admin(Campaign)
class CampaignWithPageAdmin(CampaignAdmin):
    """Administer campaigns. A new one is shown on its page, where its leads are uploaded."""

    def response_add(self, request: HttpRequest, obj: Any, post_url_continue: str | None = None) -> HttpResponse:
        response: HttpResponse = super().response_add(request, obj, post_url_continue)
        return redirect("console:campaign", obj.pk) if "_save" in request.POST else response
