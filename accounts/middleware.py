"""Set the current organization of page requests, and the rate limit headers of API responses."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from django.http import HttpRequest, HttpResponse
from django.utils import timezone

from accounts import tenancy
from accounts.auth.authentication import enter_organization, requested_organization
from accounts.models import User


class OrganizationMiddleware:
    """Set `request.organization`, `.membership`, `.role` and `.actor`.

    All are None for an anonymous request; the first three are None for a user without an organization. API
    requests get them from authentication instead. The admin shows times in the organization's time zone.
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


def _local_times(request: HttpRequest) -> contextlib.AbstractContextManager[object]:
    if request.organization is None or not request.path_info.startswith("/admin/"):
        return contextlib.nullcontext()
    return timezone.override(request.organization.time_zone)
