"""Describe the console and a technician's page to browsers, so that they can be installed as apps."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.templatetags.static import static
from django.urls import reverse
from django.views.decorators.cache import cache_control
from django.views.decorators.http import require_safe

# --page of tokens.css: a manifest has one color for light and dark. The pages give both with meta elements.
BACKGROUND = "#f3f5f8"
ICONS = (("icon-192.png", 192, "any"), ("icon-512.png", 512, "any"), ("icon-maskable-512.png", 512, "maskable"))


@require_safe
@cache_control(public=True, max_age=3600)
def console_manifest(request: HttpRequest) -> HttpResponse:
    """Return the console's web app manifest. It opens the board, and has shortcuts to other pages."""
    shortcuts = [("New job", "console:new_job"), ("Map", "console:map"), ("Timeline", "console:timeline")]
    return _manifest(
        {
            "id": "/",
            "description": "Jobs, technicians and alerts of your organization.",
            "start_url": reverse("console:board"),
            "scope": "/",
            "shortcuts": [{"name": name, "url": reverse(route)} for name, route in shortcuts],
        }
    )


@require_safe
@cache_control(public=True, max_age=3600)
def technician_manifest(request: HttpRequest) -> HttpResponse:
    """Return the manifest of technicians' pages.

    It names no page: browsers then start the app with the page from which it was installed, which is the
    technician's own.
    """
    return _manifest({})


def _manifest(described: dict[str, Any]) -> HttpResponse:
    icons = [
        {"src": static(f"dispatch/{name}"), "sizes": f"{size}x{size}", "type": "image/png", "purpose": purpose}
        for name, size, purpose in ICONS
    ]
    shared = {
        "name": "Dispatch",
        "short_name": "Dispatch",
        "display": "standalone",
        "background_color": BACKGROUND,
        "theme_color": BACKGROUND,
        "icons": icons,
    }
    return JsonResponse({**described, **shared}, content_type="application/manifest+json")
