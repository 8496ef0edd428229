"""The pages' own files: styles, scripts, pictures."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from whitenoise.middleware import WhiteNoiseMiddleware


class StaticFilesMiddleware(WhiteNoiseMiddleware):
    """WhiteNoise, answering with the whole file at once. Its own answer is read block by block through an iterator
    that is not asynchronous, for which the web process would need a thread per file; ours are small.

    Files are served from the sources that are installed: nothing has to be collected before a web process starts,
    and what an earlier version collected is never served."""

    def add_files(self, root: str, prefix: str | None = None) -> None:
        """Leaves STATIC_ROOT out, which is only for a proxy that is to serve the files itself."""

    @staticmethod
    def serve(static_file: Any, request: HttpRequest) -> HttpResponse:
        answer = static_file.get_response(request.method, request.META)
        body = b""
        if answer.file is not None:  # None: HEAD, or the browser has it already
            with answer.file as file:
                body = file.read()
        response = HttpResponse(body, status=int(answer.status))
        del response["Content-Type"]
        for name, value in answer.headers:
            response[name] = value
        return response
