"""Accept a plain, valid `POST /api/v1/submissions/` in a few round trips, ahead of the API's view.

This is the busiest request, and most of its cost in Django REST framework serves cases that are rare. Here it
takes one query (key, organization and service type), one throttle script and one INSERT (submission, event and
response to the Idempotency-Key). The rules are the view's: the same verification of keys, buckets, parser and
serializer.

Any other request goes on to the view, which answers as if this middleware did not exist: sessions, wrong keys,
invalid forms, throttled callers, repeated Idempotency-Keys, headers that negotiate something. So no refusal is
written here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from io import BytesIO
from typing import Any, NamedTuple

import structlog
from django.db import Error
from django.http import HttpRequest, HttpResponse
from rest_framework import serializers
from rest_framework.exceptions import APIException
from rest_framework.renderers import JSONRenderer

from accounts import tenancy
from accounts.auth import api_keys, throttling
from accounts.models import ApiKey
from dispatch.core.api import idempotency
from dispatch.core.api.parsers import PlainJSONParser
from dispatch.core.web.client_addresses import limit_key
from dispatch.jobs import services, submission_sql
from dispatch.jobs.api.serializers import SubmissionFormSerializer, accepted_body
from dispatch.jobs.models import ServiceType

log = structlog.get_logger(__name__)

PATH = "/api/v1/submissions/"
ENDPOINT = "submissions"  # of Idempotency-Keys, as in the view
ALLOW = "GET, POST, HEAD, OPTIONS"
# Longer bodies are rare. The view reads them after it has authenticated the caller.
MAX_BYTES = 16 * 1024
_CONTENT_TYPES = frozenset(
    {"application/json", "application/json; charset=utf-8", "application/json;charset=utf-8"}
)
_ACCEPTS = frozenset({"*/*", "application/json", "application/json, */*", "application/json, text/plain, */*"})
_NEGOTIATING = ("HTTP_COOKIE", "HTTP_X_ORGANIZATION", "QUERY_STRING")


class SubmissionIntakeMiddleware:
    """Accept plain submissions and pass everything else on.

    Put it behind the middlewares that set headers of every response or check the host name.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        response = None
        if request.path_info == PATH and request.method == "POST" and (plain := read_plain(request)):
            response = accept(request, plain)
        return self._get_response(request) if response is None else response


class PlainRequest(NamedTuple):
    """What a plain request says. `idempotency_key` may be empty; `service_code` is one of the fields of `body`."""

    api_key: str
    idempotency_key: str
    body: dict[str, Any]
    service_code: str


def read_plain(request: HttpRequest) -> PlainRequest | None:
    """Return what the request says, or None if it is not plain."""
    meta = request.META
    scheme, _, api_key = meta.get("HTTP_AUTHORIZATION", "").partition(" ")
    idempotency_key = meta.get("HTTP_IDEMPOTENCY_KEY", "")
    length = meta.get("CONTENT_LENGTH") or ""
    if (
        scheme != "Bearer"
        or not api_keys.prefix_of(api_key)
        or (idempotency_key and not idempotency.is_valid_key(idempotency_key))
        or meta.get("CONTENT_TYPE", "").lower() not in _CONTENT_TYPES
        or meta.get("HTTP_ACCEPT", "*/*") not in _ACCEPTS
        or any(meta.get(name) for name in _NEGOTIATING)
        or not (length.isdecimal() and 0 < int(length) <= MAX_BYTES)
    ):
        return None
    try:
        body = PlainJSONParser().parse(BytesIO(request.body))
    except APIException:
        return None
    service_code = body.get("service_type") if isinstance(body, dict) else None
    if not isinstance(service_code, str):
        return None
    return PlainRequest(api_key, idempotency_key, body, service_code)


def accept(request: HttpRequest, plain: PlainRequest) -> HttpResponse | None:
    """Store the submission and return the response; None if the view must respond.

    Raises errors of the database if storing fails. The submission may be stored then, so it must not be repeated.
    """
    prefix = api_keys.prefix_of(plain.api_key)
    try:
        throttling.check_sender(f"{limit_key(request)}:{prefix}")
        sender = submission_sql.find_sender(prefix, plain.service_code)
        if sender is None or sender.service_type is None:
            return None
        api_keys.verify_key(sender.api_key, plain.api_key)
        if not _may_submit(request, sender.api_key):
            return None
        organization = request.organization = sender.api_key.organization
        form = _validate(request, sender.service_type, plain.body)
    except (APIException, api_keys.InvalidApiKey):
        return None
    except Error as error:  # nothing is stored yet
        log.warning("intake_failed", error=str(error).strip())
        return None
    key = plain.idempotency_key
    submission = services.new_submission(
        organization, form, raw=plain.body, api_key=sender.api_key, idempotency_key=key, pk=sender.submission_id
    )
    body = idempotency.plain_json(accepted_body(submission))
    guard = idempotency.guard(organization.pk, ENDPOINT, key, plain.body, 202, body) if key else None
    if not services.store_submission(submission, tenancy.actor_of_key(sender.api_key), guard):
        return None
    headers = {"Location": body["status_url"], "Allow": ALLOW, **request.rate_headers}
    return HttpResponse(JSONRenderer().render(body), status=202, content_type="application/json", headers=headers)


def _may_submit(request: HttpRequest, api_key: ApiKey) -> bool:
    """Return whether the key has the scope, and its next request is allowed now. Raises Throttled."""
    if not api_key.organization.is_active or ApiKey.Scope.SUBMIT not in api_key.scopes:
        return False
    api_keys.mark_used(api_key)
    return throttling.take_request_token(request, api_key.organization_id, f"key:{api_key.pk}", "write") == 0


class _ServiceTypeFound(serializers.Field):
    """The service type that was found together with the key."""

    def to_internal_value(self, data: Any) -> Any:
        return self.context["service_type"]


class _PlainFormSerializer(SubmissionFormSerializer):
    service_type = _ServiceTypeFound()  # type: ignore[assignment]


class _Form(threading.local):
    """One serializer for each thread: a new one copies every field, which costs more than it validates."""

    def __init__(self) -> None:
        self.context: dict[str, Any] = {}
        self.serializer = _PlainFormSerializer(context=self.context)


_form = _Form()


def _validate(request: HttpRequest, service_type: ServiceType, body: dict[str, Any]) -> dict[str, Any]:
    """Return the validated form. Raises ValidationError."""
    _form.context.update(request=request, service_type=service_type)
    try:
        validated: dict[str, Any] = _form.serializer.run_validation(body)
        return validated
    finally:
        _form.context.clear()
