"""Call the API as its clients do: a program with a key, or a user in a browser."""

from __future__ import annotations

import json
from typing import Any

from django.test import Client

from accounts.models import User


class Api:
    """`Api(key=…)` or `Api(user=…)`, or anonymous; paths are below /api/v1/."""

    def __init__(
        self, key: str = "", user: User | None = None, organization: str = "", csrf: bool = False
    ) -> None:
        self.client = Client(enforce_csrf_checks=csrf, raise_request_exception=False)
        if user:
            self.client.force_login(user, backend="django.contrib.auth.backends.ModelBackend")
        self.headers = {}
        if key:
            self.headers["Authorization"] = f"Bearer {key}"
        if organization:
            self.headers["X-Organization"] = organization

    def send(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        address = path if path.startswith("/") else f"/api/v1/{path}"
        text = (
            "" if method == "GET" else body if isinstance(body, str) else json.dumps({} if body is None else body)
        )
        return self.client.generic(method, address, text, "application/json", headers={**self.headers, **sent})

    def get(self, path: str, **headers: str) -> Any:
        return self.send("GET", path, **headers)

    def post(self, path: str, body: Any = None, **headers: str) -> Any:
        return self.send("POST", path, body, **headers)

    def patch(self, path: str, body: Any = None, **headers: str) -> Any:
        return self.send("PATCH", path, body, **headers)

    def delete(self, path: str, **headers: str) -> Any:
        return self.send("DELETE", path, **headers)
