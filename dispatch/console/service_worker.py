"""Serve the service worker, which shows push notifications, and the page that it shows without a connection.

The worker keeps that page and its files, and the browser's push subscription. It keeps no other page: an old board
would mislead.
"""

from __future__ import annotations

import hashlib
import json

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.template.loader import render_to_string
from django.templatetags.static import static
from django.urls import reverse
from django.views.decorators.cache import cache_control
from django.views.decorators.http import require_safe

from dispatch.core import languages
from dispatch.jobs.public.common import requested_language

FILES = ("tokens.css", "console.css", "pages.css", "favicon.svg", "offline.js")


@require_safe
@cache_control(no_cache=True)
def service_worker(request: HttpRequest) -> HttpResponse:
    """Return the script. It may control every page of this site."""
    kept = [reverse("console:offline"), *(static(f"dispatch/{name}") for name in FILES)]
    page = render_to_string("pages/offline.html", {}) + "".join(kept)
    context = {
        "offline": json.dumps(kept[0]),
        "kept": json.dumps(kept),
        "cache": json.dumps(f"offline-{hashlib.sha256(page.encode()).hexdigest()[:16]}"),
        "renewal": json.dumps(reverse("console:push_renewal")),
        "icon": json.dumps(static("dispatch/icon-192.png")),
    }
    script = render_to_string("console/service_worker.js", context)
    return HttpResponse(
        script, content_type="text/javascript; charset=utf-8", headers={"Service-Worker-Allowed": "/"}
    )


@require_safe
@cache_control(no_cache=True)
def offline_page(request: HttpRequest) -> HttpResponse:
    """Render the page that the worker shows if the server cannot be reached. It is the same for everyone."""
    with languages.override(requested_language(request, languages.DEFAULT)):
        return render(request, "pages/offline.html", {})
