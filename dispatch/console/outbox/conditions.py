"""Try an endpoint's condition on its latest events, and save it."""

from __future__ import annotations

from django.contrib import messages
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse, HttpResponseForbidden
from django.shortcuts import get_object_or_404
from django.urls import reverse
from django.views.decorators.http import require_http_methods

from accounts.models import Membership
from dispatch.console import views_base
from dispatch.console.outbox import queries
from dispatch.console.views_base import console_view
from dispatch.core.languages import gettext as _
from dispatch.outbox.rules.conditions import MAX_LENGTH
from dispatch.outbox.services import endpoints as services
from dispatch.outbox.services import missed_events
from dispatch.outbox.validators import check_condition


@require_http_methods(["GET", "POST"])
@console_view
def edit_condition(request: HttpRequest, endpoint_id: int) -> HttpResponse:
    """Show for which of the latest events `condition` holds; with `save`, an admin saves it."""
    endpoint = get_object_or_404(queries.endpoints_of(request.organization.pk), pk=endpoint_id)
    is_admin = request.role == Membership.Role.ADMIN
    given = request.POST if request.method == "POST" else request.GET
    condition = given.get("condition", endpoint.condition).strip().replace("\x00", "")[: MAX_LENGTH + 1]
    is_saving = request.method == "POST" and "save" in request.POST
    if is_saving and not is_admin:
        return HttpResponseForbidden(_("Only admins can change the condition of an endpoint. Ask an admin."))
    try:
        check_condition(condition)
        error = ""
    except ValidationError as refused:
        error = " ".join(refused.messages)
    if is_saving and not error:
        services.change_endpoint(endpoint.pk, {"condition": condition}, actor=request.actor)
        messages.success(request, _("Condition saved. It applies to new events."))
        return views_base.back_to(request, reverse("console:outbox_endpoint", args=[endpoint.pk]))
    tried = [] if error else missed_events.try_condition(endpoint, condition)
    context = {
        "current": "outbox", "tab": "endpoints", "endpoint": endpoint, "condition": condition, "error": error,
        "counts": queries.count_outbox(endpoint.organization_id), "is_admin": is_admin, "tried": tried,
        "holding": sum(one.holds for one in tried), "most": MAX_LENGTH,
    }  # fmt: skip
    return views_base.render_page(request, "console/outbox/condition.html", context, status=422 if error else 200)
