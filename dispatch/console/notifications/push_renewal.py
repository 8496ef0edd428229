"""The address at which a service worker replaces its browser's push subscription, without a session."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from django.conf import settings
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_http_methods

from accounts.auth import throttling
from dispatch.core.web.client_addresses import limit_key
from notifications.services import push_keys, push_renewal

MAX_BODY_BYTES = 4096


@csrf_exempt
@never_cache
@require_http_methods(["GET", "POST"])
def renew_browser(request: HttpRequest) -> HttpResponse:
    """Return this installation's public key; on POST, replace a subscription by a new one.

    There is no session: the earlier subscription's secret in the body is the only credential, which browsers don't
    send by themselves as they send a cookie. Guesses are rate limited.
    """
    if request.method == "GET":
        return JsonResponse({"key": push_keys.load_keys().public})
    body = _read_body(request)
    if body is None:
        return JsonResponse({"problem": "The body must name both subscriptions."}, status=400)
    try:
        count = push_renewal.renew(*body)
    except ValidationError:
        return JsonResponse({"problem": "The new subscription is not valid."}, status=422)
    except push_renewal.TooManyRenewals:
        return JsonResponse({"problem": "Too many requests."}, status=429)
    if not count:
        return _refuse_guess(request)
    return JsonResponse({"renewed": count})


def _refuse_guess(request: HttpRequest) -> HttpResponse:
    rate = throttling.parse_rate(settings.LINK_GUESS_RATE)
    taken = throttling.take_token(f"push:{limit_key(request)}", rate)
    if taken.wait_ms:
        answer = JsonResponse({"problem": "Too many requests."}, status=429)
        answer["Retry-After"] = str(-(-taken.wait_ms // 1000))
        return answer
    return JsonResponse({"problem": "The earlier subscription is not known."}, status=404)


def _read_body(request: HttpRequest) -> tuple[Mapping[str, Any], Mapping[str, Any]] | None:
    """Return the earlier and the new subscription, or None if the body has another form."""
    if len(request.body) > MAX_BODY_BYTES:
        return None
    try:
        body = json.loads(request.body)
    except (ValueError, RecursionError):
        return None
    parts = (body.get("before"), body.get("subscription")) if isinstance(body, dict) else (None, None)
    before, new = parts
    return (before, new) if isinstance(before, dict) and isinstance(new, dict) else None
