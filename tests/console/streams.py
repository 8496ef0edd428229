"""Read responses that are sent in parts."""

from __future__ import annotations

from typing import Any

from asgiref.sync import async_to_sync


def read_stream(answer: Any) -> str:
    """Return the text of a streamed response."""

    async def read() -> bytes:
        return b"".join([part async for part in answer.streaming_content])

    return async_to_sync(read)().decode()
