"""Restrict django-rq's dashboard to superusers, who are logged. By default it admits everyone in the admin."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponseBase
from django.urls import URLPattern
from django_rq import urls

from accounts import installation_log


def for_superusers(view: Callable[..., HttpResponseBase]) -> Callable[..., HttpResponseBase]:
    """Wrap `view` so that it asks for sign-in and rejects everyone except superusers."""

    @functools.wraps(view)
    def guarded(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        if not request.user.is_authenticated:
            return redirect_to_login(request.get_full_path(), "admin:login")
        if not (request.user.is_active and request.user.is_superuser):
            raise PermissionDenied
        response = view(request, *args, **kwargs)
        if request.method == "POST" and response.status_code < 400:
            actor = request.actor
            installation_log.append_event("installation.queue_changed", 0, actor=actor, path=request.path)
        return response

    return guarded


urlpatterns = [
    URLPattern(route.pattern, for_superusers(route.callback), route.default_args, route.name)
    for route in urls.urlpatterns
]
