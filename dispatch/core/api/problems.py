"""Return errors of the API as problem details (RFC 9457), always as `application/problem+json`.

    {"type": "urn:dispatch:problem:validation_error", "title": "Not valid", "status": 400,
     "detail": "customer_phone: Enter a phone number.",
     "errors": [{"field": "customer_phone", "code": "invalid", "detail": "Enter a phone number."}]}

`field` is a dotted path into the body ("address.zip", "stops.2.lat") or null if the error concerns no
single field. At most MAX_ERRORS are listed; `more_errors` counts the rest.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from datetime import datetime
from http import HTTPStatus
from typing import Any

import structlog
from django.core.exceptions import RequestDataTooBig, SuspiciousOperation
from django.core.exceptions import ValidationError as ModelValidationError
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.template import loader
from django.urls import Resolver404, resolve
from django.views import defaults
from django.views.decorators.csrf import csrf_exempt
from drf_standardized_errors.formatter import ExceptionFormatter
from drf_standardized_errors.handler import ExceptionHandler
from rest_framework import exceptions, status
from rest_framework.fields import get_error_detail
from rest_framework.permissions import SAFE_METHODS
from rest_framework.renderers import JSONRenderer
from rest_framework.response import Response
from rest_framework.settings import api_settings

from dispatch.core.db.errors import is_duplicate, is_missing_reference, is_temporary
from dispatch.core.events import Actor
from dispatch.core.languages import gettext as _
from dispatch.core.languages import mark

log = structlog.get_logger(__name__)
CONTENT_TYPE = "application/problem+json"
_PAGELESS = ("/api/", "/telephony/")  # paths that programs request, not browsers
TYPE_PREFIX = "urn:dispatch:problem:"
MAX_ERRORS = 50
MAX_DETAIL_LENGTH = 1000
MAX_FIELD_LENGTH = 200
RETRY_AFTER_S = 5  # seconds, for responses that ask the client to retry
_IN_DOUBT = "A change may or may not have been saved."
_FAILED = f"The request failed and was logged. {_IN_DOUBT} Read the resource before you send it again."
_READ_FAILED = "The request failed and was logged. It changed nothing."
_TITLES = {"validation_error": "Not valid", "error": "Something went wrong"}


class Conflict(exceptions.APIException):
    """409: the request no longer applies, because the resource was changed in the meantime.

    `by` (an Actor or a name), `did` ("assigned the job to Unit 12") and `at` say who did what and when. They
    appear in `detail` and as the `conflict` member: {"by": {"type", "id", "label"}, "did", "at"}; `more` adds
    members to it (a version).
    """

    status_code = status.HTTP_409_CONFLICT
    default_detail = mark("This was changed in the meantime. Reload and try again.")
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
        super().__init__(detail or _(str(self.default_detail)), code)


class MissingReference(Conflict):
    """409: the request named a row that was deleted meanwhile, or deleted a row that is now in use."""

    default_detail = mark("Something in this request was deleted, or is now in use. Reload and try again.")
    default_code = "missing_reference"


class Duplicate(Conflict):
    """409: another request saved the same after this one was validated."""

    default_detail = mark("Another request has just saved the same. Reload and try again.")
    default_code = "duplicate"


# What others have saved since a request read its rows, as the database refuses it.
_OVERTAKEN: tuple[tuple[Callable[[BaseException | None], bool], type[Conflict]], ...] = (
    (is_missing_reference, MissingReference),
    (is_duplicate, Duplicate),
)


class Unprocessable(exceptions.APIException):
    """422: the request is well formed, but not possible. `code` gives the reason for programs."""

    status_code = status.HTTP_422_UNPROCESSABLE_ENTITY
    default_detail = mark("This action isn't possible.")
    default_code = "unprocessable"

    def __init__(self, detail: Any = None, code: str | None = None) -> None:
        super().__init__(_(str(self.default_detail)) if detail is None else detail, code)


class LimitReached(Unprocessable):
    """422: the organization has as much of something as it may have.

    `limit` is a member of the problem: {"name", "limit", "used"}.
    """

    default_detail = mark("Your organization has reached a limit.")
    default_code = "limit_reached"

    def __init__(self, detail: str, *, limit: dict[str, Any]) -> None:
        super().__init__(detail)
        self.limit = limit


class TooLarge(exceptions.APIException):
    """413: the body is too large."""

    status_code = status.HTTP_413_REQUEST_ENTITY_TOO_LARGE
    default_detail = "The body is too large."
    default_code = "too_large"


class Unavailable(exceptions.APIException):
    """503: the same request may succeed after `wait` seconds.

    It may have been saved: the reply to a commit can be lost, or the database can fail when the response is read.
    """

    status_code = status.HTTP_503_SERVICE_UNAVAILABLE
    default_detail = (
        f"The service is busy or its database does not respond. {_IN_DOUBT} Repeat it in a moment with the same "
        "Idempotency-Key, or read the resource first."
    )
    default_code = "unavailable"
    wait = RETRY_AFTER_S


class Busy(Unavailable):
    """503: the request was not begun, so nothing was saved."""

    default_detail = "The service is busy. Nothing was saved; try again in a moment."


class NotRead(Unavailable):
    """503: the request only reads, so it can have saved nothing."""

    default_detail = "The service is busy or its database does not respond. Try again in a moment."


class ProblemFormatter(ExceptionFormatter):
    """Build the problem's body from an APIException."""

    def run(self) -> dict[str, Any]:
        all_errors = self.get_errors()
        errors = [
            {
                "field": _shorten(_field(error.attr), MAX_FIELD_LENGTH),
                "code": error.code,
                "detail": _shorten(error.detail, MAX_DETAIL_LENGTH),
            }
            for error in all_errors[:MAX_ERRORS]
        ]
        code = "validation_error" if self.get_error_type() == "validation_error" else errors[0]["code"]
        problem = problem_body(
            self.exc.status_code, str(code), detail=_summary(errors, len(all_errors)), errors=errors
        )
        if len(all_errors) > MAX_ERRORS:
            problem["more_errors"] = len(all_errors) - MAX_ERRORS
        if isinstance(self.exc, Conflict):
            problem["conflict"] = self.exc.conflict
        if isinstance(self.exc, LimitReached):
            problem["limit"] = self.exc.limit
        return problem


class ProblemHandler(ExceptionHandler):
    """Handle exceptions like drf-standardized-errors, but return 4xx for requests that Django itself rejects.

    It also renders problems as JSON, and sets their content type, in views that respond with something else.
    """

    def convert_known_exceptions(self, exc: Exception) -> Exception:
        if isinstance(exc, RequestDataTooBig):
            return TooLarge()
        if isinstance(exc, SuspiciousOperation):
            return exceptions.ParseError("The request could not be read.")
        if is_temporary(exc):
            return NotRead() if _only_reads(self.context["request"]) else Unavailable()
        if conflict := _find_conflict(exc):
            return conflict()
        if isinstance(exc, ModelValidationError):
            return exceptions.ValidationError(get_error_detail(exc))
        return super().convert_known_exceptions(exc)

    def convert_unhandled_exceptions(self, exc: Exception) -> exceptions.APIException:
        if isinstance(exc, exceptions.APIException):
            return exc
        return exceptions.APIException(_READ_FAILED if _only_reads(self.context["request"]) else _FAILED)

    def get_response(self, exc: exceptions.APIException, data: dict) -> Response:
        request: Any = self.context["request"]
        if not isinstance(getattr(request, "accepted_renderer", None), JSONRenderer):
            request.accepted_renderer, request.accepted_media_type = JSONRenderer(), JSONRenderer.media_type
        return Response(data, status=exc.status_code, headers=self.get_headers(exc), content_type=CONTENT_TYPE)


def problem_body(
    status_code: int, code: str, *, detail: str = "", errors: list[dict] | None = None
) -> dict[str, Any]:
    """Return the members of a problem."""
    title = _TITLES.get(code) or HTTPStatus(status_code).phrase
    return {
        "type": TYPE_PREFIX + code,
        "title": title,
        "status": status_code,
        "detail": detail or title,
        "errors": [{"field": None, "code": code, "detail": detail or title}] if errors is None else errors,
    }


def problem_response(status_code: int, code: str, detail: str = "") -> HttpResponse:
    """Return a problem from a plain Django view or middleware."""
    content = json.dumps(problem_body(status_code, code, detail=detail))
    return HttpResponse(content, status=status_code, content_type=CONTENT_TYPE)


def unavailable(path: str, refusal: type[Unavailable] = Unavailable) -> HttpResponse:
    """Return a 503 with Retry-After: the same request may succeed in a moment. Busy: it was not begun.

    Programs get a problem, browsers a page.
    """
    answer = _problem_or_page(path, refusal)
    answer["Retry-After"] = str(RETRY_AFTER_S)
    return answer


def _problem_or_page(path: str, refusal: type[exceptions.APIException]) -> HttpResponse:
    """Return the refusal with its default text: a problem for programs, a page for browsers."""
    status_code = refusal.status_code
    if path.startswith(_PAGELESS):
        return problem_response(status_code, refusal.default_code, str(refusal.default_detail))
    given = {"was_begun": refusal is not Busy, "only_reads": refusal is NotRead}
    page = loader.render_to_string(f"{status_code}.html", given)
    return HttpResponse(page, status=status_code)


@csrf_exempt  # nothing is changed, and the response must say that the URL is wrong
def unknown_path(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
    """Return a 404 for an unknown path under /api/."""
    detail = "No such endpoint."
    if not request.path_info.endswith("/"):
        try:
            if resolve(f"{request.path_info}/").func is not unknown_path:
                detail = f"No such endpoint. Did you mean {request.path_info}/ ?"
        except Resolver404:
            pass
    return problem_response(404, "not_found", detail)


def raise_not_found(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
    """Raise Http404, in place of a page of Django that is not used here."""
    raise Http404


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponseBase:
    """Return a 400 as Django's handler400: a problem under /api/, else a page."""
    if not _is_api(request):
        return defaults.bad_request(request, exception)
    if isinstance(exception, RequestDataTooBig):
        return problem_response(413, "too_large", "The body is too large.")
    return problem_response(400, "parse_error", "The request could not be read.")


def forbidden(request: HttpRequest, exception: Exception) -> HttpResponseBase:
    """Return a 403 as Django's handler403: a problem under /api/, else a page."""
    if not _is_api(request):
        return defaults.permission_denied(request, exception)
    return problem_response(403, "permission_denied", "You don't have permission to do this.")


def not_found(request: HttpRequest, exception: Exception) -> HttpResponseBase:
    """Return a 404 as Django's handler404: a problem under /api/, else a page."""
    return unknown_path(request) if _is_api(request) else defaults.page_not_found(request, exception)


def server_error(request: HttpRequest) -> HttpResponseBase:
    """Return a 500 as Django's handler500, a 503 for a temporary database error, a 409 for a conflict."""
    error = sys.exc_info()[1]
    only_reads = _only_reads(request)
    if is_temporary(error):
        return unavailable(request.path_info, NotRead if only_reads else Unavailable)
    if conflict := _find_conflict(error):
        return _problem_or_page(request.path_info, conflict)
    if _is_api(request):
        return problem_response(500, "error", _READ_FAILED if only_reads else _FAILED)
    page = loader.render_to_string("500.html", {"only_reads": only_reads})
    return HttpResponse(page, status=500)


def _find_conflict(error: BaseException | None) -> type[Conflict] | None:
    """Return what to answer if another request was faster, and log the error."""
    for was_overtaken, conflict in _OVERTAKEN:
        if was_overtaken(error):
            log.warning(conflict.default_code, error=str(error))
            return conflict
    return None


def _only_reads(request: Any) -> bool:
    return request.method in SAFE_METHODS


def _is_api(request: HttpRequest) -> bool:
    return request.path_info.startswith("/api/")


def _field(attr: str | None) -> str | None:
    return None if attr in (None, api_settings.NON_FIELD_ERRORS_KEY) else attr


def _shorten(text: Any, length: int) -> Any:
    """Return the text without its middle if it is too long, such as when it repeats a value of the body."""
    return text if text is None or len(text) <= length else f"{text[: length // 2]} … {text[-length // 4 :]}"


def _summary(errors: list[dict[str, Any]], count: int) -> str:
    if not errors:
        return ""
    first = f"{errors[0]['field']}: {errors[0]['detail']}" if errors[0]["field"] else errors[0]["detail"]
    return first if count == 1 else f"{first} (and {count - 1} more)"
