"""Limit the size of headers on HTTP/1.1 connections.

Before the application runs, uvicorn's parser holds the request line, headers and trailers in memory, without a
limit on their length.
"""

from __future__ import annotations

from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

# Limit for the request line and headers of one request, in bytes; proxies allow 8 to 32 KiB. Bytes that arrive
# together with the beginning of a request (at most 256 KiB) are not counted.
MAX_HEADER_BYTES = 64 * 1024


class HeaderLimitProtocol(HttpToolsProtocol):
    """Return 431 and close the connection when headers or trailers exceed MAX_HEADER_BYTES."""

    _bytes_since_progress = 0
    _has_progressed = False

    def data_received(self, data: bytes) -> None:
        """Count the bytes that the parser holds because they complete neither headers nor a part of a body."""
        self._has_progressed = False
        super().data_received(data)
        self._bytes_since_progress = 0 if self._has_progressed else self._bytes_since_progress + len(data)
        if self._bytes_since_progress > MAX_HEADER_BYTES and not self.transport.is_closing():
            self._refuse_headers()

    def _refuse_headers(self) -> None:
        if self.cycle is None or self.cycle.response_complete:  # else it would mix with a response in progress
            self.transport.write(STATUS_LINE[431] + b"content-length: 0\r\nconnection: close\r\n\r\n")
        self.transport.close()

    def on_message_begin(self) -> None:
        self._has_progressed = True
        super().on_message_begin()

    def on_headers_complete(self) -> Any:
        self._has_progressed = True
        return super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._has_progressed = True
        super().on_body(body)
