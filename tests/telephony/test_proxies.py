"""Requests that a proxy prevents: they were certainly not sent, so they may be repeated."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from socketserver import StreamRequestHandler, ThreadingTCPServer
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from dispatch.capacity.models import ProviderAccount
from dispatch.telephony.providers import twilio
from dispatch.telephony.providers.base import CallRequest, RateLimited

ORDER = CallRequest(
    to="+16025550101",
    from_="+16025550100",
    voice_url="https://dispatch.example.com/voice",
    status_url="https://dispatch.example.com/status",
    ring_timeout_s=20,
    time_limit_s=60,
    leave_within_s=30.0,
    detect_machine=False,
    fallback_url="",
)


class Proxy(ThreadingTCPServer):
    """A proxy that refuses tunnels, or answers in the provider's name with a certificate that nobody trusts."""

    allow_reuse_address = daemon_threads = True

    def __init__(self, certificate: Path | None) -> None:
        self.context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self.intercepts = certificate is not None
        if certificate is not None:
            self.context.load_cert_chain(certificate)
        self.requests: list[bytes] = []
        super().__init__(("127.0.0.1", 0), Tunnel)


class Tunnel(StreamRequestHandler):
    server: Proxy

    def handle(self) -> None:
        while self.rfile.readline().strip():
            pass
        if not self.server.intercepts:
            self.wfile.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")
            return
        self.wfile.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        with suppress(OSError), self.server.context.wrap_socket(self.connection, server_side=True) as inside:
            self.server.requests.append(inside.recv(1024))


def write_certificate(path: Path) -> Path:
    """Write a key and a certificate of the provider's host name, signed by itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "api.twilio.com")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("api.twilio.com")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path.write_bytes(private + certificate.public_bytes(serialization.Encoding.PEM))
    return path


@pytest.fixture(params=["refuses", "intercepts"])
def proxy(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> Iterator[Proxy]:
    """A proxy that all requests to the provider must use, as in production."""
    settings.SIMULATOR_URL = ""
    with Proxy(write_certificate(tmp_path / "proxy.pem") if request.param == "intercepts" else None) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{server.server_address[1]}")
        monkeypatch.setenv("NO_PROXY", "")
        yield server
        server.shutdown()


def test_call_that_a_proxy_prevents_was_certainly_not_requested(proxy: Proxy) -> None:
    account = ProviderAccount(account_sid="AC" + "1" * 32, auth_token="token")
    outcome = twilio.make(account).place(ORDER)
    assert isinstance(outcome, RateLimited)
    assert outcome.is_unreachable
    assert not any(proxy.requests)
