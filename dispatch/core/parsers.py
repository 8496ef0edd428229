"""JSON bodies, without what PostgreSQL cannot store."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import IO, Any

from rest_framework.exceptions import ParseError
from rest_framework.parsers import JSONParser

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
            raise ParseError("The body holds a NUL character or half of a surrogate pair.")
        return value


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
