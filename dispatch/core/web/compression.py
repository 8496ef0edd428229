"""Compress what browsers load: pages, fragments, JSON, styles and scripts."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable
from threading import Lock

from django.http import HttpRequest, HttpResponse
from django.utils.cache import patch_vary_headers
from django.utils.text import compress_string

# Shorter bodies fit in the first packets anyway.
MIN_BYTES = 1000
# Files are compressed once per process; at most this many are kept.
MAX_FILES = 200
TEXTS = frozenset(
    {"text/html", "text/css", "text/csv", "text/javascript", "application/json", "image/svg+xml", "text/plain"}
)
# Random bytes in the header of a compressed page hide its length (the BREACH attack).
MAX_RANDOM_BYTES = 100
_GZIP = re.compile(r"\bgzip\b(?!\s*;\s*q=0(?:\.0*)?\s*(?:,|$))")
_files: OrderedDict[str, bytes] = OrderedDict()
_lock = Lock()


def accepts_gzip(request: HttpRequest) -> bool:
    """Return whether the client accepts gzip."""
    return bool(_GZIP.search(request.META.get("HTTP_ACCEPT_ENCODING", "")))


def is_text(response: HttpResponse) -> bool:
    """Return whether the body is a text that compresses well."""
    return response.get("Content-Type", "").partition(";")[0].strip() in TEXTS


def set_compressed(response: HttpResponse, body: bytes) -> None:
    """Replace the body by its compressed form."""
    response.content = body
    response["Content-Encoding"] = "gzip"
    response["Content-Length"] = str(len(body))


def compress_file(key: str, body: bytes) -> bytes:
    """Return the compressed body of a file. `key` names the file and its version."""
    with _lock:
        if (known := _files.get(key)) is not None:
            _files.move_to_end(key)
            return known
    compressed: bytes = compress_string(body)
    with _lock:
        _files[key] = compressed
        while len(_files) > MAX_FILES:
            _files.popitem(last=False)
    return compressed


class CompressionMiddleware:
    """Compress texts for clients that accept gzip.

    A response with an ETag stays as it is: the API's clients send the tag back as the version of a row. Static
    files are compressed by `static_files`.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        response = self._get_response(request)
        if response.streaming or response.has_header("Content-Encoding") or not is_text(response):
            return response
        if len(response.content) < MIN_BYTES or response.has_header("ETag"):
            return response
        patch_vary_headers(response, ("Accept-Encoding",))
        if accepts_gzip(request):
            body = compress_string(response.content, max_random_bytes=MAX_RANDOM_BYTES)
            if len(body) < len(response.content):
                set_compressed(response, body)
        return response
