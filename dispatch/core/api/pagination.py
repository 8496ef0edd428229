"""Paginate with cursors, newest first."""

from __future__ import annotations

from typing import Any

from rest_framework.exceptions import NotFound, ValidationError
from rest_framework.pagination import CursorPagination
from rest_framework.request import Request

from dispatch.core.ids import read_id


class NewestFirst(CursorPagination):
    """Paginate newest first, with `?page_size=` up to 200. `next` and `previous` are absolute URLs."""

    ordering = "-id"
    page_size_query_param = "page_size"
    max_page_size = 200

    def decode_cursor(self, request: Request) -> Any:
        """Decode the cursor as DRF does. Raises ValidationError if it is invalid or its position is not an id."""
        try:
            cursor = super().decode_cursor(request)
        except NotFound:
            raise ValidationError({"cursor": [self.invalid_cursor_message]}) from None
        position = "0" if cursor is None or cursor.position is None else str(cursor.position)
        if read_id(position) is None:
            raise ValidationError({"cursor": [self.invalid_cursor_message]})
        return cursor
