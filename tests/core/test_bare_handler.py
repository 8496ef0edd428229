"""Webhooks pass few middlewares, and keep what every response has: an id, a length, pages of errors."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import requests
from django.conf import settings as django_settings
from django.http import HttpRequest, HttpResponse
from django.urls import path

from dispatch.core.web.asgi_handler import ThreadedASGIHandler
from dispatch.core.web.bare_handler import BareHandler

FALLBACK = "/telephony/twilio/fallback"
WEBHOOK = "/telephony/twilio/calls/1/status"


def fail(request: HttpRequest) -> HttpResponse:
    raise RuntimeError("the view has trouble")


def has_session(request: HttpRequest) -> HttpResponse:
    return HttpResponse(f"{hasattr(request, 'session')} {request.resolver_match}".encode())


urlpatterns = [path("fails", fail), path("session", has_session)]


def test_the_middlewares_of_webhooks_are_some_of_all_in_their_order() -> None:
    every = django_settings.MIDDLEWARE
    assert [name for name in every if name in django_settings.WEBHOOK_MIDDLEWARE] == (
        django_settings.WEBHOOK_MIDDLEWARE
    )


def test_a_webhook_has_an_id_and_a_length_but_no_policy_of_pages(app_url: str) -> None:
    headers = {"X-Request-ID": "webhook-0001"}
    answer = requests.post(f"{app_url}{FALLBACK}", data={"CallSid": "CA1"}, headers=headers, timeout=60)

    assert answer.status_code == 200
    assert answer.headers["X-Request-ID"] == "webhook-0001"
    assert answer.headers["Content-Length"] == str(len(answer.content))
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert "Content-Security-Policy" not in answer.headers
    assert not answer.cookies


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/telephony/twilio/calls/1/status/further", 404),
        ("/telephony/twilio/calls/one/status", 404),
        ("/telephony/recordings/unknown", 404),
        ("/telephony/", 404),
        (f"{WEBHOOK}?step=%00", 400),
    ],
)
def test_other_paths_and_malformed_ones_have_pages(app_url: str, path: str, status: int) -> None:
    answer = requests.post(f"{app_url}{path}", data={"CallSid": "CA1"}, timeout=60)
    assert (answer.status_code, answer.headers["Content-Type"]) == (status, "text/html; charset=utf-8")


def test_a_webhook_with_too_many_fields_is_refused(app_url: str) -> None:
    fields = {f"Field{n}": "1" for n in range(django_settings.DATA_UPLOAD_MAX_NUMBER_FIELDS + 1)}
    headers = {"X-Twilio-Signature": "signed"}
    assert requests.post(f"{app_url}{WEBHOOK}", data=fields, headers=headers, timeout=60).status_code == 400


def test_only_its_routes_are_bare_and_a_failing_view_is_a_500(settings: Any) -> None:
    settings.ROOT_URLCONF = __name__
    settings.DEBUG_PROPAGATE_EXCEPTIONS = False
    application = ThreadedASGIHandler(1, BareHandler("/", __name__, settings.WEBHOOK_MIDDLEWARE))

    async def ask(path: str) -> tuple[int, bytes]:
        said: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b""}

        async def send(message: dict[str, Any]) -> None:
            said.append(message)

        scope = {"type": "http", "path": path, "method": "POST", "headers": [(b"host", b"testserver")]}
        await application(scope, receive, send)
        return said[0]["status"], said[1]["body"]

    assert asyncio.run(ask("/fails"))[0] == 500
    status, body = asyncio.run(ask("/session"))
    assert status == 200
    assert body.startswith(b"False ResolverMatch")
