"""Name our authentication schemes in the OpenAPI schema. Loaded with the URLs."""

from __future__ import annotations

from typing import Any

from drf_spectacular.extensions import OpenApiAuthenticationExtension


class KeyScheme(OpenApiAuthenticationExtension):
    """Describe authentication by API key."""

    target_class = "accounts.auth.authentication.ApiKeyAuthentication"
    name = "apiKey"

    def get_security_definition(self, auto_schema: Any) -> dict[str, Any]:
        return {"type": "http", "scheme": "bearer", "description": "An API key: `Bearer dk_<prefix>_<secret>`."}


class SessionScheme(OpenApiAuthenticationExtension):
    """Describe authentication by browser session."""

    target_class = "accounts.auth.authentication.MemberSessionAuthentication"
    name = "session"

    def get_security_definition(self, auto_schema: Any) -> dict[str, Any]:
        return {
            "type": "apiKey",
            "in": "cookie",
            "name": "sessionid",
            "description": "A browser session after sign-in.",
        }
