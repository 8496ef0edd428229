"""Serve the static files of pages: styles, scripts, images."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.utils.cache import patch_vary_headers
from whitenoise.middleware import WhiteNoiseMiddleware

from dispatch.core.web import compression

# Ends the ETag of a compressed file, which is a separate representation.
_GZIP_TAG = '-gzip"'


class StaticFilesMiddleware(WhiteNoiseMiddleware):
    """Serve files with WhiteNoise, but each as one response body.

    WhiteNoise's responses are synchronous iterators, for which the web process would need a thread per file, and
    the files are small. They are served from the installed sources, so nothing has to be collected before a web
    process starts, and files collected by an earlier version are never served. Texts are compressed once per
    process.
    """

    def add_files(self, root: str, prefix: str | None = None) -> None:
        """Do not serve STATIC_ROOT, which is only for a proxy that serves the files itself."""

    @staticmethod
    def serve(static_file: Any, request: HttpRequest) -> HttpResponse:
        headers = dict(request.META)
        if given := headers.get("HTTP_IF_NONE_MATCH"):
            headers["HTTP_IF_NONE_MATCH"] = given.replace(_GZIP_TAG, '"')
        is_head = request.method == "HEAD"  # its headers are those of GET
        answer = static_file.get_response("GET" if is_head else request.method, headers)
        body = b""
        if answer.file is not None:  # None: the browser has a current copy
            with answer.file as file:
                body = file.read()
        response = HttpResponse(body, status=int(answer.status))
        del response["Content-Type"]
        for name, value in answer.headers:
            response[name] = value
        if answer.status == HTTPStatus.OK and compression.is_text(response):
            _compress(request, response)
        elif answer.status == HTTPStatus.NOT_MODIFIED and given != headers.get("HTTP_IF_NONE_MATCH"):
            response["ETag"] = _tag_of_compressed(response)
        if is_head:
            response.content = b""
        return response


def _compress(request: HttpRequest, response: HttpResponse) -> None:
    """Compress a whole file for a client that accepts it."""
    patch_vary_headers(response, ("Accept-Encoding",))
    if not compression.accepts_gzip(request) or len(response.content) < compression.MIN_BYTES:
        return
    key = f"{request.path_info} {response.get('ETag', '')}"
    compression.set_compressed(response, compression.compress_file(key, response.content))
    response["ETag"] = _tag_of_compressed(response)


def _tag_of_compressed(response: HttpResponse) -> str:
    tag: str = response.get("ETag", '""')
    return f"{tag[:-1]}{_GZIP_TAG}"
