"""Parse JSON bodies, and reject values that PostgreSQL cannot store."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from io import BytesIO
from typing import IO, Any

from rest_framework.exceptions import ErrorDetail, ParseError, ValidationError
from rest_framework.parsers import BaseParser, JSONParser
from rest_framework.settings import api_settings

_MAX_PATH_LENGTH = 200
MAX_DEPTH = 64
# Bounds on what a body costs: an empty list is 3 bytes of JSON, 64 of Python, and work for the garbage collector.
# A body may have this many lists and objects, and one more for every 32 bytes.
MAX_CONTAINERS, BYTES_PER_CONTAINER = 60_000, 32
MAX_VALUES = 3_000_000
TOO_DEEP = f"The body is nested too deeply. The maximum is {MAX_DEPTH} levels."
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
_TEXT = "Contains a NUL character or half of a surrogate pair."


class PlainJSONParser(JSONParser):
    """Parse JSON, but reject a body with too many values, and what PostgreSQL stores neither as text nor as jsonb.

    These are NUL characters, lone surrogates and numbers beyond a double (1e999).
    """

    def parse(
        self, stream: IO[Any], media_type: str | None = None, parser_context: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        read = stream.read()
        check_size(read)
        try:
            value = self.load(read, media_type, parser_context)
        except RecursionError:
            raise ParseError(TOO_DEEP) from None
        self.check_depth(value)
        self.check(value)
        return value

    def load(self, body: bytes, media_type: str | None, parser_context: Mapping[str, Any] | None) -> Any:
        """Return the value of a body. Raises ParseError and RecursionError."""
        return super().parse(BytesIO(body), media_type, parser_context)

    def check_depth(self, value: Any) -> None:
        """Reject a body that is nested too deeply. Raises ParseError."""
        if is_too_deep(value):
            raise ParseError(TOO_DEEP)

    def check(self, value: Any) -> None:
        """Reject a body that PostgreSQL cannot store. Raises ValidationError."""
        if not is_storable(value) and (unstorable := find_unstorable(value)):
            where, words = unstorable
            raise ValidationError(
                {where or api_settings.NON_FIELD_ERRORS_KEY: [ErrorDetail(words, code="unstorable")]}
            )


class LargeJSONParser(BaseParser):
    """A PlainJSONParser for the few API endpoints that accept up to `limit` bytes. Raises TooLarge.

    All others accept DATA_UPLOAD_MAX_MEMORY_SIZE (2.5 MB).
    """

    media_type = PlainJSONParser.media_type
    limit = 16 * 2**20
    parser_class = PlainJSONParser

    def parse(
        self, stream: IO[Any], media_type: str | None = None, parser_context: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        from dispatch.core.api.problems import TooLarge  # late: it needs DRF's settings, which name this module

        read = stream.read(self.limit + 1)
        if len(read) > self.limit:
            raise TooLarge(f"The body is too large. The maximum is {self.limit // 2**20} MiB.")
        return self.parser_class().parse(BytesIO(read), media_type, parser_context)


def check_size(body: bytes) -> None:
    """Raise TooLarge, before anything is parsed, for a body with too many values."""
    from dispatch.core.api.problems import TooLarge  # late: it needs DRF's settings, which name this module

    containers = body.count(b"[") + body.count(b"{")
    if (
        containers > MAX_CONTAINERS + len(body) // BYTES_PER_CONTAINER
        or containers + body.count(b",") > MAX_VALUES
    ):
        raise TooLarge("The body contains too many values. Split it into several requests.")


def load_json(text: str) -> Any:
    """Parse the JSON that a user entered in a form.

    Raises ValueError with a message for users, also for values that PostgreSQL cannot store.
    """
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("Invalid JSON: it is nested too deeply.") from None
    except ValueError as error:
        raise ValueError(f"Invalid JSON: {error}.") from None
    if unstorable := find_unstorable(value):
        raise ValueError(": ".join(filter(None, unstorable)))
    return value


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def is_too_deep(value: Any) -> bool:
    """Return whether lists and objects are nested deeper than MAX_DEPTH."""
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [
            child
            for item in level
            if isinstance(item, (dict, list))
            for child in (item.values() if isinstance(item, dict) else item)
            if isinstance(child, (dict, list))
        ]
        if not level:
            return False
    return True


def is_storable(value: Any) -> bool:
    """Return whether PostgreSQL can store every text and number in this JSON value."""
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            if _UNSTORABLE.search(item):
                return False
        elif isinstance(item, float):
            if not math.isfinite(item):
                return False
        elif isinstance(item, dict):
            waiting += [*item.keys(), *item.values()]
        elif isinstance(item, list):
            waiting += item
    return True


def find_unstorable(value: Any) -> tuple[str, str] | None:
    """Return the location and the reason of the first value that PostgreSQL cannot store; None if there is none.

    The location is a dotted path ("extra.gate", "stops.2.lat") or "" for the value itself. If a member's name is
    rejected, it is the path of the object.
    """
    waiting: list[tuple[str, Any]] = [("", value)]
    while waiting:
        where, item = waiting.pop()
        if isinstance(item, float):
            if not is_storable(item):
                return where, "This number is too large."
        elif isinstance(item, str):
            if not is_storable(item):
                return where, _TEXT
        elif isinstance(item, (dict, list)):
            members = item.items() if isinstance(item, dict) else enumerate(item)
            for name, member in members:
                if not is_storable(name):
                    return where, _TEXT
                waiting.append(((f"{where}.{name}" if where else str(name))[:_MAX_PATH_LENGTH], member))
    return None
