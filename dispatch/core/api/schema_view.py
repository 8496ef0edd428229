"""Serve the OpenAPI document: generated once per process, revalidated by ETag."""

from __future__ import annotations

import hashlib
import threading
from typing import Any

from django.http import HttpResponse
from django.utils.http import parse_etags
from drf_spectacular.utils import extend_schema
from drf_spectacular.views import SpectacularAPIView
from rest_framework.request import Request

from dispatch.core import languages

# Seconds for which clients and proxies may cache the document.
MAX_AGE_S = 300


class SchemaView(SpectacularAPIView):
    """Serve the schema, which is the same for everyone, in the format that the client accepts."""

    authentication_classes = ()
    permission_classes = ()
    throttle_classes = ()

    _lock = threading.Lock()
    _schema: dict[str, Any] | None = None
    _documents: dict[str, tuple[bytes, str]] = {}

    @extend_schema(exclude=True)
    def get(self, request: Request, *args: Any, **kwargs: Any) -> HttpResponse:
        renderer = request.accepted_renderer
        content, etag = self._document(renderer)
        headers = {"ETag": etag, "Cache-Control": f"public, max-age={MAX_AGE_S}", "Vary": "Accept"}
        if etag in parse_etags(request.headers.get("If-None-Match", "")):
            return HttpResponse(status=304, headers=headers)
        return HttpResponse(content, content_type=renderer.media_type, headers=headers)

    @classmethod
    def _generate(cls) -> dict[str, Any]:
        schema: dict[str, Any] = cls.generator_class().get_schema(request=None, public=True)
        return schema

    @classmethod
    def _document(cls, renderer: Any) -> tuple[bytes, str]:
        """Return the rendered English schema and its ETag. Concurrent first requests wait for one generation."""
        with cls._lock, languages.override(languages.DEFAULT):
            document = cls._documents.get(renderer.media_type)
            if document is None:
                if cls._schema is None:
                    cls._schema = cls._generate()
                content = renderer.render(cls._schema, renderer_context={})
                content = content.encode() if isinstance(content, str) else content
                document = content, f'"{hashlib.sha256(content).hexdigest()[:32]}"'
                cls._documents[renderer.media_type] = document
        return document
