"""Serve the static files of pages: styles, scripts, images."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from whitenoise.middleware import WhiteNoiseMiddleware


class StaticFilesMiddleware(WhiteNoiseMiddleware):
    """Serve files with WhiteNoise, but each as one response body.

    WhiteNoise's responses are synchronous iterators, for which the web process would need a thread per file, and
    the files are small. They are served from the installed sources, so nothing has to be collected before a web
    process starts, and files collected by an earlier version are never served.
    """

    def add_files(self, root: str, prefix: str | None = None) -> None:
        """Do not serve STATIC_ROOT, which is only for a proxy that serves the files itself."""

    @staticmethod
    def serve(static_file: Any, request: HttpRequest) -> HttpResponse:
        answer = static_file.get_response(request.method, request.META)
        body = b""
        if answer.file is not None:  # None: HEAD, or the browser has a current copy
            with answer.file as file:
                body = file.read()
        response = HttpResponse(body, status=int(answer.status))
        del response["Content-Type"]
        for name, value in answer.headers:
            response[name] = value
        return response
