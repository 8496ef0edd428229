"""Check client certificates for mutual TLS, and build the TLS contexts that present them.

Connections are reused only under the same TLS context, so requests with different certificates never share one.
"""

from __future__ import annotations

import functools
import os
import ssl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

MAX_LENGTH = 20_000
MAX_CHAIN = 10
MIN_RSA_BITS, MAX_RSA_BITS = 2048, 4096
# The clocks of the issuer and of this machine may differ.
CLOCK_DIFFERENCE = timedelta(minutes=5)
# A context holds the system's authorities, about half a megabyte.
MAX_CONTEXTS = 100


class InvalidCertificate(ValueError):
    """The certificate, or its key (`is_key`), cannot be used. The message is for users."""

    def __init__(self, message: str, *, is_key: bool = False) -> None:
        super().__init__(message)
        self.is_key = is_key


def check_certificate(certificate: str, key: str, now: datetime) -> datetime:
    """Return when the first certificate of the chain expires.

    `certificate` is PEM: the client's certificate first, then those of intermediate authorities. `key` is its
    private key in PEM without a passphrase. Raises InvalidCertificate.
    """
    leaf = _parse_chain(certificate)[0]
    private = _parse_key(key)
    if _public_bytes(leaf.public_key()) != _public_bytes(private.public_key()):
        raise InvalidCertificate("The key doesn't belong to the certificate.", is_key=True)
    if leaf.not_valid_after_utc <= now:
        raise InvalidCertificate(f"The certificate expired on {leaf.not_valid_after_utc:%Y-%m-%d %H:%M} UTC.")
    if leaf.not_valid_before_utc > now + CLOCK_DIFFERENCE:
        raise InvalidCertificate(f"The certificate is valid from {leaf.not_valid_before_utc:%Y-%m-%d %H:%M} UTC.")
    try:
        tls_context(certificate, key)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise InvalidCertificate(f"OpenSSL refuses this certificate or its key: {error}.") from None
    return leaf.not_valid_after_utc


@functools.lru_cache(maxsize=MAX_CONTEXTS)
def tls_context(certificate: str, key: str) -> ssl.SSLContext:
    """Return a context that verifies servers by the system's authorities and presents the certificate.

    It blocks for some milliseconds the first time. Raises ssl.SSLError.
    """
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    # The separator keeps a key without a final line break from running into the certificate.
    with _as_file(f"{key}\n{certificate}\n") as path:
        context.load_cert_chain(path, password=_refuse_passphrase)
    return context


def _refuse_passphrase() -> str:
    # Without this, OpenSSL would ask for the passphrase on the terminal.
    raise ValueError("the key has a passphrase")


@contextmanager
def _as_file(text: str) -> Iterator[str]:
    """Yield the path of a file with this text. Python's ssl loads keys from files only."""
    if hasattr(os, "memfd_create"):  # in memory, so that the key reaches no disk
        descriptor = os.memfd_create("client-key", os.MFD_CLOEXEC)
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
            file.flush()
            yield f"/proc/self/fd/{descriptor}"
        return
    with tempfile.NamedTemporaryFile("w") as file:  # readable by this user only
        file.write(text)
        file.flush()
        yield file.name


def _parse_chain(certificate: str) -> list[x509.Certificate]:
    if len(certificate) > MAX_LENGTH:
        raise InvalidCertificate(f"Must have at most {MAX_LENGTH:,} characters.")
    try:
        chain = x509.load_pem_x509_certificates(certificate.encode())
        _public_bytes(chain[0].public_key())
    except (ValueError, UnsupportedAlgorithm):
        raise InvalidCertificate("Not a certificate in PEM. It begins with -----BEGIN CERTIFICATE-----.") from None
    if len(chain) > MAX_CHAIN:
        raise InvalidCertificate(f"The chain has more than {MAX_CHAIN} certificates.")
    return chain


def _parse_key(key: str) -> rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey:
    if len(key) > MAX_LENGTH:
        raise InvalidCertificate(f"Must have at most {MAX_LENGTH:,} characters.", is_key=True)
    try:
        # Its size first: validating the factors of 8,192 bits takes seconds, and of more bits minutes.
        private = load_pem_private_key(key.encode(), password=None, unsafe_skip_rsa_key_validation=True)
        if isinstance(private, rsa.RSAPrivateKey):
            if not MIN_RSA_BITS <= private.key_size <= MAX_RSA_BITS:
                size = f"An RSA key must have {MIN_RSA_BITS:,} to {MAX_RSA_BITS:,} bits."
                raise InvalidCertificate(size, is_key=True)
            private = load_pem_private_key(key.encode(), password=None)
    except TypeError:
        raise InvalidCertificate("The key has a passphrase. Enter it without one.", is_key=True) from None
    except InvalidCertificate:
        raise
    except (ValueError, UnsupportedAlgorithm):
        raise InvalidCertificate("Not a private key in PEM.", is_key=True) from None
    kinds = (rsa.RSAPrivateKey, ec.EllipticCurvePrivateKey, ed25519.Ed25519PrivateKey, ed448.Ed448PrivateKey)
    if not isinstance(private, kinds):
        raise InvalidCertificate("The key must be an RSA, EC or Ed25519 key.", is_key=True)
    return private  # type: ignore[return-value]


def _public_bytes(public: object) -> bytes:
    return public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)  # type: ignore[attr-defined]
