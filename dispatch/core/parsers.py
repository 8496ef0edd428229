"""JSON bodies, without what PostgreSQL cannot store."""

from __future__ import annotations

import re
from collections.abc import Mapping
from io import BytesIO
from typing import IO, Any

from rest_framework.exceptions import ErrorDetail, ParseError, ValidationError
from rest_framework.parsers import BaseParser, JSONParser
from rest_framework.settings import api_settings

_LONGEST_PATH = 200
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


class PlainJSONParser(JSONParser):
    """Refuses NUL characters and lone surrogates anywhere in the body: neither text nor jsonb can hold them."""

    def parse(
        self, stream: IO[Any], media_type: str | None = None, parser_context: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        try:
            value = super().parse(stream, media_type, parser_context)
        except RecursionError:
            raise ParseError("The body is nested too deeply.") from None
        if not storable(value):
            told = ErrorDetail("This holds a NUL character or half of a surrogate pair.", code="unstorable")
            raise ValidationError({unstorable(value) or api_settings.NON_FIELD_ERRORS_KEY: [told]})
        return value


class LargeJSONParser(BaseParser):
    """As PlainJSONParser, for the few endpoints that take more than DATA_UPLOAD_MAX_MEMORY_SIZE (2.5 MB, which
    holds everywhere else): up to `limit` bytes. Raises TooLarge."""

    media_type = PlainJSONParser.media_type
    limit = 16 * 2**20

    def parse(
        self, stream: IO[Any], media_type: str | None = None, parser_context: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        from dispatch.core.problems import TooLarge  # which needs DRF's settings, which name this module

        read = stream.read(self.limit + 1)
        if len(read) > self.limit:
            raise TooLarge(f"The body is too large: at most {self.limit // 2**20} MiB.")
        return PlainJSONParser().parse(BytesIO(read), media_type, parser_context)


def storable(value: Any) -> bool:
    """Whether no string in this JSON value holds what PostgreSQL refuses."""
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            if _UNSTORABLE.search(item):
                return False
        elif isinstance(item, dict):
            waiting += [*item.keys(), *item.values()]
        elif isinstance(item, list):
            waiting += item
    return True


def unstorable(value: Any) -> str | None:
    """The dotted path of a text that PostgreSQL refuses ("extra.gate", "stops.2.lat"): of what is around it where
    the name of a member is one, "" for the value itself. None when all can be stored."""
    waiting: list[tuple[str, Any]] = [("", value)]
    while waiting:
        where, item = waiting.pop()
        if isinstance(item, str):
            if not storable(item):
                return where
        elif isinstance(item, (dict, list)):
            members = item.items() if isinstance(item, dict) else enumerate(item)
            for name, one in members:
                if not storable(name):
                    return where
                waiting.append(((f"{where}.{name}" if where else str(name))[:_LONGEST_PATH], one))
    return None
