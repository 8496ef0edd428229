"""Run a small OpenID Connect provider: discovery, keys, the authorization page, tokens and user information.

Tokens are signed by joserfc. It checks clients, redirect URIs, PKCE and codes as a strict provider does; a test
changes `claims`, or makes it misbehave with `token_claims` and `signing_key`.

    with OpenIdProvider() as acme:
        acme.claims["email"] = "dana@acme.example"
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import secrets
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qs, urlencode, urlsplit

from joserfc import jwt
from joserfc.jwk import KeySet, RSAKey

CLIENT_ID, CLIENT_SECRET = "dispatch", "a secret: with ü & spaces"
_keys: list[RSAKey] = []


def signing_keys(count: int) -> list[RSAKey]:
    """Return this many keys. They are shared by all providers of a run, because generating one takes long."""
    while len(_keys) < count:
        _keys.append(RSAKey.generate_key(2048, {"kid": f"key-{len(_keys)}", "use": "sig", "alg": "RS256"}))
    return _keys[:count]


class OpenIdProvider:
    """A provider on a free port. It signs in its one person at once, or after a click (`asks`)."""

    def __init__(self, key: int = 0, *, asks: bool = False) -> None:
        self.key, self.asks = signing_keys(key + 1)[key], asks
        self.signing_key = self.key
        self.claims: dict[str, Any] = {"sub": "4711", "email": "dana@acme.example", "email_verified": True}
        self.token_claims: dict[str, Any] = {}  # override what the ID token says; None removes a claim
        self.discovery: dict[str, Any] = {}  # override what discovery says
        self.user_info: Any = None
        self.published_keys: Any = None  # instead of the key
        self.token_response: Any = None  # instead of the tokens
        self.header: dict[str, Any] = {"alg": "RS256"}
        self.redirect_uris: list[str] = []  # empty: any
        self.codes: dict[str, dict[str, str]] = {}
        self.requests: list[str] = []
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"provider": self}))
        self.issuer = f"http://127.0.0.1:{self.server.server_address[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop listening, as a provider that is down."""
        self.server.shutdown()
        self.server.server_close()

    def configuration(self) -> dict[str, Any]:
        return {
            "issuer": self.issuer,
            "authorization_endpoint": f"{self.issuer}/authorize",
            "token_endpoint": f"{self.issuer}/token",
            "jwks_uri": f"{self.issuer}/keys",
            "userinfo_endpoint": f"{self.issuer}/userinfo",
            "response_types_supported": ["code"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": ["RS256"],
            "token_endpoint_auth_methods_supported": ["client_secret_post", "client_secret_basic"],
            "code_challenge_methods_supported": ["S256"],
        } | self.discovery

    def authorize(self, url: str) -> str:
        """Return where a browser is sent back that opened this authorization URL and signed in."""
        asked = {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}
        assert asked["client_id"] == CLIENT_ID
        assert (asked["response_type"], asked["code_challenge_method"]) == ("code", "S256")
        assert "openid" in asked["scope"].split()
        assert not self.redirect_uris or asked["redirect_uri"] in self.redirect_uris
        code = secrets.token_urlsafe(16)
        self.codes[code] = asked
        return f"{asked['redirect_uri']}?{urlencode({'code': code, 'state': asked['state'], 'iss': self.issuer})}"

    def redeem(self, given: dict[str, str]) -> tuple[int, Any]:
        """Answer a token request. Each code works once."""
        asked = self.codes.pop(given.get("code", ""), None)
        if (given.get("client_id"), given.get("client_secret")) != (CLIENT_ID, CLIENT_SECRET):
            return 401, {"error": "invalid_client"}
        challenge = hashlib.sha256(given.get("code_verifier", "").encode()).digest()
        if (
            asked is None
            or asked["redirect_uri"] != given.get("redirect_uri")
            or asked["code_challenge"] != base64.urlsafe_b64encode(challenge).decode().rstrip("=")
        ):
            return 400, {"error": "invalid_grant"}
        token = {"access_token": "at", "token_type": "Bearer", "expires_in": 60, "id_token": self.sign(asked)}
        return 200, token if self.token_response is None else self.token_response

    def sign(self, asked: dict[str, str]) -> str:
        now = int(time.time())
        times = {"iss": self.issuer, "aud": asked["client_id"], "iat": now, "exp": now + 300}
        claims = times | {"nonce": asked.get("nonce")} | self.claims | self.token_claims
        said = {name: value for name, value in claims.items() if value is not None}
        header = {"kid": self.key.kid} | self.header
        return jwt.encode(header, said, self.signing_key, algorithms=[header["alg"]])


class _Handler(BaseHTTPRequestHandler):
    provider: OpenIdProvider

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        self.provider.requests.append(path)
        if path == "/.well-known/openid-configuration":
            self._answer(200, self.provider.configuration())
        elif path == "/keys":
            keys = self.provider.published_keys
            self._answer(200, keys if keys is not None else KeySet([self.provider.key]).as_dict(private=False))
        elif path == "/userinfo":
            self._answer(200, self.provider.user_info or {})
        elif path == "/authorize":
            self._authorize()
        else:
            self._answer(404, {})

    def do_POST(self) -> None:
        self.provider.requests.append(self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
        given = {name: values[0] for name, values in parse_qs(body).items()}
        self._answer(*self.provider.redeem(given))

    def _authorize(self) -> None:
        target = self.provider.authorize(self.path)
        if not self.provider.asks:
            self.send_response(302)
            self.send_header("Location", target)
            self.end_headers()
            return
        email = html.escape(str(self.provider.claims.get("email")))
        page = f"<h1>Provider</h1><a href='{html.escape(target, quote=True)}'>Sign in as {email}</a>"
        self._send(200, "text/html; charset=utf-8", page.encode())

    def _answer(self, status: int, content: Any) -> None:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self._send(status, "application/json", body)

    def _send(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: Any) -> None:
        """Log nothing."""
