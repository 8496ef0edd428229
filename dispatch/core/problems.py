"""Errors of the API as problem details (RFC 9457), always `application/problem+json`.

    {"type": "urn:dispatch:problem:validation_error", "title": "Not valid", "status": 400,
     "detail": "customer_phone: Enter a phone number.",
     "errors": [{"field": "customer_phone", "code": "invalid", "detail": "Enter a phone number."}]}

`field` is a dotted path into the body ("address.zip", "stops.2.lat") or null when no field is to blame.
"""

from __future__ import annotations

import json
from datetime import datetime
from http import HTTPStatus
from typing import Any

from django.core.exceptions import RequestDataTooBig, SuspiciousOperation
from django.core.exceptions import ValidationError as ModelValidationError
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.urls import Resolver404, resolve
from django.views import defaults
from django.views.decorators.csrf import csrf_exempt
from drf_standardized_errors.formatter import ExceptionFormatter
from drf_standardized_errors.handler import ExceptionHandler
from rest_framework import exceptions, status
from rest_framework.fields import get_error_detail
from rest_framework.response import Response
from rest_framework.settings import api_settings

from dispatch.core.events import Actor

CONTENT_TYPE = "application/problem+json"
TYPE_PREFIX = "urn:dispatch:problem:"
_TITLES = {"validation_error": "Not valid", "error": "Something went wrong here"}


class Conflict(exceptions.APIException):
    """409: what was asked for no longer fits what is there, because somebody did something in between.

    `by` (an Actor or a name), `did` ("assigned the job to Unit 12") and `at` say who did what when, in `detail`
    and as the `conflict` member: {"by": {"type", "id", "label"}, "did", "at"}; `more` adds members to it (a
    version)."""

    status_code = status.HTTP_409_CONFLICT
    default_detail = "Somebody changed this in the meantime."
    default_code = "conflict"

    def __init__(
        self,
        detail: str | None = None,
        *,
        by: Actor | str | None = None,
        did: str = "",
        at: datetime | None = None,
        code: str | None = None,
        **more: Any,
    ) -> None:
        actor = Actor(label=by) if isinstance(by, str) else by
        self.conflict: dict[str, Any] = {
            "by": {"type": actor.type, "id": actor.id, "label": actor.label} if actor else None,
            "did": did or None,
            "at": at.isoformat() if at else None,
            **more,
        }
        if detail is None and actor and did:
            detail = f"{actor.label} {did}" + (f" at {at:%Y-%m-%d %H:%M:%S} UTC." if at else ".")
        super().__init__(detail, code)


class Unprocessable(exceptions.APIException):
    """422: well formed, and yet it cannot be done. `code` says why, for programs."""

    status_code = status.HTTP_422_UNPROCESSABLE_ENTITY
    default_detail = "This cannot be done."
    default_code = "unprocessable"


class TooLarge(exceptions.APIException):
    """413."""

    status_code = status.HTTP_413_REQUEST_ENTITY_TOO_LARGE
    default_detail = "The body is too large."
    default_code = "too_large"


class ProblemFormatter(ExceptionFormatter):
    """Makes the problem's body from an APIException."""

    def run(self) -> dict[str, Any]:
        errors = [
            {"field": _field(error.attr), "code": error.code, "detail": error.detail}
            for error in self.get_errors()
        ]
        code = "validation_error" if self.get_error_type() == "validation_error" else errors[0]["code"]
        problem = body(self.exc.status_code, str(code), detail=_summary(errors), errors=errors)
        if isinstance(self.exc, Conflict):
            problem["conflict"] = self.exc.conflict
        return problem


class ProblemHandler(ExceptionHandler):
    """As the package's handler, with Django's own refusals kept out of the 500s and the problem's content type."""

    def convert_known_exceptions(self, exc: Exception) -> Exception:
        if isinstance(exc, RequestDataTooBig):
            return TooLarge()
        if isinstance(exc, SuspiciousOperation):
            return exceptions.ParseError("The request could not be read.")
        if isinstance(exc, ModelValidationError):
            return exceptions.ValidationError(get_error_detail(exc))
        return super().convert_known_exceptions(exc)

    def convert_unhandled_exceptions(self, exc: Exception) -> exceptions.APIException:
        if isinstance(exc, exceptions.APIException):
            return exc
        return exceptions.APIException("This request failed. It was logged; nothing of it was kept.")

    def get_response(self, exc: exceptions.APIException, data: dict) -> Response:
        return Response(data, status=exc.status_code, headers=self.get_headers(exc), content_type=CONTENT_TYPE)


def body(status_code: int, code: str, *, detail: str = "", errors: list[dict] | None = None) -> dict[str, Any]:
    """The members of a problem."""
    title = _TITLES.get(code) or HTTPStatus(status_code).phrase
    return {
        "type": TYPE_PREFIX + code,
        "title": title,
        "status": status_code,
        "detail": detail or title,
        "errors": [{"field": None, "code": code, "detail": detail or title}] if errors is None else errors,
    }


def response(status_code: int, code: str, detail: str = "") -> HttpResponse:
    """A problem from a plain Django view or middleware."""
    content = json.dumps(body(status_code, code, detail=detail))
    return HttpResponse(content, status=status_code, content_type=CONTENT_TYPE)


@csrf_exempt  # nothing is done here, and a program must learn that its address is wrong
def unknown_address(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
    """Whatever lies under /api/ and is not ours."""
    detail = "There is nothing at this address."
    if not request.path_info.endswith("/"):
        try:
            if resolve(f"{request.path_info}/").func is not unknown_address:
                detail = f"There is nothing at this address. Did you mean {request.path_info}/ ?"
        except Resolver404:
            pass
    return response(404, "not_found", detail)


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponseBase:
    """Django's handler400."""
    if not _is_api(request):
        return defaults.bad_request(request, exception)
    if isinstance(exception, RequestDataTooBig):
        return response(413, "too_large", "The body is too large.")
    return response(400, "parse_error", "The request could not be read.")


def forbidden(request: HttpRequest, exception: Exception) -> HttpResponseBase:
    """Django's handler403."""
    if not _is_api(request):
        return defaults.permission_denied(request, exception)
    return response(403, "permission_denied", "You may not do this.")


def not_found(request: HttpRequest, exception: Exception) -> HttpResponseBase:
    """Django's handler404."""
    return unknown_address(request) if _is_api(request) else defaults.page_not_found(request, exception)


def failed(request: HttpRequest) -> HttpResponseBase:
    """Django's handler500."""
    return response(500, "error", "This request failed.") if _is_api(request) else defaults.server_error(request)


def _is_api(request: HttpRequest) -> bool:
    return request.path_info.startswith("/api/")


def _field(attr: str | None) -> str | None:
    return None if attr in (None, api_settings.NON_FIELD_ERRORS_KEY) else attr


def _summary(errors: list[dict[str, Any]]) -> str:
    if not errors:
        return ""
    first = f"{errors[0]['field']}: {errors[0]['detail']}" if errors[0]["field"] else errors[0]["detail"]
    return first if len(errors) == 1 else f"{first} (and {len(errors) - 1} more)"
