"""Play a push service (RFC 8030) on loopback, and the browsers that subscribed to it.

It checks each request's signature (RFC 8292), and decrypts each message (RFC 8188 and 8291) with `cryptography`
alone, so that the library that encrypts is not its own judge.
"""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

import jwt
import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from dispatch.core.http.client import HttpClient
from notifications.channels import push

# The service's name. Its requests come to the local server.
HOST = "push.example.com"


def encode(raw: bytes) -> str:
    """Return base64url without padding, as browsers do."""
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def decode(text: str) -> bytes:
    """Return the bytes of base64url."""
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


class Browser:
    """One browser: its keys, and where its push service takes messages."""

    def __init__(self, name: str, server_key: str = "") -> None:
        self.name, self.server_key = name, server_key
        self._private = ec.generate_private_key(ec.SECP256R1())
        self._auth = name.encode().ljust(16, b".")[:16]

    @property
    def point(self) -> bytes:
        return self._private.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)

    @property
    def subscription(self) -> dict[str, Any]:
        """Return what `PushSubscription.toJSON()` returns in this browser."""
        keys = {"p256dh": encode(self.point), "auth": encode(self._auth)}
        return {"endpoint": f"https://{HOST}/send/{self.name}", "expirationTime": None, "keys": keys}

    def decrypt(self, body: bytes) -> Any:
        """Return the payload of a message, as RFC 8291 describes it for the receiver."""
        salt, size, length = body[:16], int.from_bytes(body[16:20], "big"), body[20]
        point, sealed = body[21 : 21 + length], body[21 + length :]
        assert len(sealed) <= size
        sender = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), point)
        shared = self._private.exchange(ec.ECDH(), sender)
        secret = _derive(shared, self._auth, b"WebPush: info\0" + self.point + point, 32)
        key = _derive(secret, salt, b"Content-Encoding: aes128gcm\0", 16)
        nonce = _derive(secret, salt, b"Content-Encoding: nonce\0", 12)
        padded = AESGCM(key).decrypt(nonce, sealed, None)
        plain, mark, padding = padded.rpartition(b"\2")
        assert mark
        assert not padding.strip(b"\0")
        return json.loads(plain)


def _derive(secret: bytes, salt: bytes, info: bytes, length: int) -> bytes:
    return HKDF(hashes.SHA256(), length, salt, info).derive(secret)


@dataclass
class Pushed:
    """One message that the service took."""

    browser: str
    headers: Mapping[str, str]
    body: bytes
    claims: Mapping[str, Any]
    payload: Any

    @property
    def ttl_s(self) -> int:
        return int(self.headers["TTL"])


@dataclass
class PushService:
    """What the service took, and what it answers by browser. `hanging` browsers wait for `go_on`."""

    port: int = 0
    pushed: list[Pushed] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    requests: int = 0
    browsers: dict[str, Browser] = field(default_factory=dict)
    answers: dict[str, tuple[int, dict[str, str]]] = field(default_factory=dict)
    hanging: set[str] = field(default_factory=set)
    arrived: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    go_on: threading.Event = field(default_factory=threading.Event)

    def browser(self, name: str) -> Browser:
        self.browsers[name] = Browser(name)
        return self.browsers[name]

    def answer(self, name: str, status: int, **headers: str) -> None:
        self.answers[name] = status, {key.replace("_", "-"): text for key, text in headers.items()}

    def payloads(self, name: str) -> list[Any]:
        return [one.payload for one in self.pushed if one.browser == name]

    def accept(self, path: str, headers: Mapping[str, str], body: bytes) -> int:
        """Check one message as push services do, and return the status of the answer."""
        browser = self.browsers.get(path.rpartition("/")[2])
        if browser is None:
            return 404
        if headers.get("Content-Encoding") != "aes128gcm" or not headers.get("TTL", "").isdigit():
            return self._refuse("not a message", 400)
        if len(body) > 4096:
            return self._refuse("too long", 413)
        try:
            claims = check_signature(headers.get("Authorization", ""), browser.server_key)
        except (ValueError, AssertionError, jwt.PyJWTError) as error:
            return self._refuse(f"signature: {error!r}", 403)
        payload = browser.decrypt(body)
        self.pushed.append(Pushed(browser.name, headers, body, claims, payload))
        return 201

    def _refuse(self, why: str, status: int) -> int:
        self.refused.append(why)
        return status


def check_signature(given: str, server_key: str = "") -> Mapping[str, Any]:
    """Return the claims of a VAPID header. Raises ValueError, AssertionError or PyJWTError if it is not valid."""
    scheme, _, rest = given.partition(" ")
    assert scheme == "vapid"
    parts = dict(part.strip().split("=", 1) for part in rest.split(","))
    assert not server_key or parts["k"] == server_key, "signed by another key than the browser subscribed under"
    key = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), decode(parts["k"]))
    claims: Mapping[str, Any] = jwt.decode(parts["t"], key, algorithms=["ES256"], audience=f"https://{HOST}")
    assert 0 < claims["exp"] - time.time() <= 24 * 3600
    assert str(claims["sub"]).startswith(("mailto:", "https:"))
    return claims


@contextmanager
def push_service(patch: pytest.MonkeyPatch) -> Iterator[PushService]:
    """Run the service until the block ends."""
    state = PushService()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            state.requests += 1
            state.arrived.release()
            name = self.path.rpartition("/")[2]
            if name in state.hanging:
                state.go_on.wait(60)
            status, headers = state.answers.get(name) or (state.accept(self.path, dict(self.headers), body), {})
            try:
                self.send_response(status)
                for key, text in headers.items():
                    self.send_header(key, text)
                self.send_header("Content-Length", "0")
                self.end_headers()
            except OSError:
                self.close_connection = True  # the caller has gone

        def log_message(self, *args: Any) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    state.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()

    class LocalClient(HttpClient):
        """Send what is for the service to the local server. All checks stay in force."""

        async def _send(self, method: str, url: str, *args: Any, **options: Any) -> Any:
            parts = urlsplit(url)
            if parts.hostname == HOST:
                assert parts.scheme == "https"
                url = f"http://127.0.0.1:{state.port}{parts.path}"
            return await super()._send(method, url, *args, **options)

    patch.setattr(push, "HttpClient", LocalClient)
    try:
        yield state
    finally:
        state.go_on.set()
        server.shutdown()
        server.server_close()
        thread.join()
