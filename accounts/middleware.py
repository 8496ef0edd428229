"""What every page request knows, the organization a signed-in person is working in, and what every API answer
says of its rate limit."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from django.http import HttpRequest, HttpResponse
from django.utils import timezone

from accounts import current
from accounts.authentication import wanted, work_in
from accounts.models import User


class OrganizationMiddleware:
    """Sets `request.organization`, `.membership`, `.role` and `.actor`; all None for nobody, the first three for a
    person without an organization. An API request gets them from its authentication instead. The admin tells times
    as the organization lives."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        request.organization = request.membership = request.role = request.actor = None
        if not request.path_info.startswith("/api/") and isinstance(request.user, User):
            request.actor = current.actor_of(request.user)
            with contextlib.suppress(current.NoOrganization):
                work_in(request, current.of_person(request.user, remembered_id=wanted(request)[1]))
        with _local_times(request):
            response = self.get_response(request)
        for name, value in getattr(request, "rate_headers", {}).items():
            response[name] = value
        return response


def _local_times(request: HttpRequest) -> contextlib.AbstractContextManager[object]:
    if request.organization is None or not request.path_info.startswith("/admin/"):
        return contextlib.nullcontext()
    return timezone.override(request.organization.time_zone)
