"""Receive the demo organization's outbox messages, as its CRM and billing system would. Development only."""

from __future__ import annotations

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.urls import path
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

PATH = "demo-receiver/"


def receiver_url() -> str:
    """Return the address under which the endpoints of the demo organization are."""
    return f"{settings.PUBLIC_BASE_URL}/{PATH}"


@csrf_exempt
@require_POST
def receive(request: HttpRequest, name: str) -> HttpResponse:
    """Accept a message."""
    return HttpResponse(status=204)


urlpatterns = [path("<slug:name>/", receive)]
