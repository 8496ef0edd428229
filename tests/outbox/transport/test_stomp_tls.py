"""ActiveMQ over TLS: its certificate is verified, and an unverified server gets no data."""

from __future__ import annotations

import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import pkcs12
from cryptography.x509.oid import NameOID

from dispatch.outbox import queues
from dispatch.outbox.pointer import MessagePointer
from dispatch.outbox.queues import QueueUnavailable

from .brokers import KEYS_PASSWORD, ActiveMqServer, require_activemq
from .conftest import Make

pytestmark = pytest.mark.soak


def certificate(folder: Path, host: str) -> tuple[Path, Path]:
    """Make a self-signed certificate for `host`; return its file, and a PKCS #12 file with its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name, now = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "broker")]), datetime.now(UTC)
    made = (
        x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(host))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )  # fmt: skip
    pem, store = folder / "broker.pem", folder / "broker.p12"
    pem.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    secret = serialization.BestAvailableEncryption(KEYS_PASSWORD.encode())
    store.write_bytes(pkcs12.serialize_key_and_certificates(b"broker", key, made, None, secret))
    return pem, store


@pytest.mark.parametrize(
    ("host", "is_trusted", "works"),
    [("127.0.0.1", True, True), ("127.0.0.1", False, False), ("10.0.0.1", True, False)],
)
def test_broker_certificate_is_verified(
    settings: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, make_pointer: Make,
    host: str, is_trusted: bool, works: bool,
) -> None:  # fmt: skip
    require_activemq()
    pem, store = certificate(tmp_path, host)
    server = ActiveMqServer(tmp_path, scheduler=False, keys=store)
    settings.OUTBOX_QUEUE_TYPE = "activemq"
    settings.OUTBOX_QUEUE_URL = f"stomp+ssl://127.0.0.1:{server.port}/pointers"
    if is_trusted:
        monkeypatch.setenv("SSL_CERT_FILE", str(pem))
    server.start()
    try:
        pointer = make_pointer()
        with queues.publisher() as publisher, queues.consumer("one") as consumer:
            if not works:
                with pytest.raises(QueueUnavailable):
                    publisher.publish(pointer, "1-1")
                return
            publisher.publish(pointer, "1-1")
            found: list[Any] = []
            while not found:
                found = consumer.receive(1, 5.0)
            found[0].ack()
            assert MessagePointer.from_json(found[0].pointer_json) == pointer
    finally:
        server.stop()
