"""Issue certificates for tests: an authority, servers on loopback, and clients."""

from __future__ import annotations

import ipaddress
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID


class Authority:
    """A certificate authority. `file` holds its certificate."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        now = datetime.now(UTC)
        made = (
            x509.CertificateBuilder().subject_name(self._name).issuer_name(self._name)
            .public_key(self._key.public_key()).serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=365))
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(self._key, hashes.SHA256())
        )  # fmt: skip
        self.folder, self.file = folder, folder / f"{name}.pem"
        self.file.write_bytes(made.public_bytes(Encoding.PEM))

    def issue(
        self, name: str, days: float = 90, starts_in_days: float = -1, host: str = "127.0.0.1"
    ) -> tuple[str, str]:
        """Return a certificate that ends in `days`, and its key, both as PEM."""
        key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
        address = x509.IPAddress(ipaddress.ip_address(host))
        made = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])).issuer_name(self._name)
            .public_key(key.public_key()).serial_number(x509.random_serial_number())
            .not_valid_before(now + timedelta(days=min(starts_in_days, days - 1)))
            .not_valid_after(now + timedelta(days=days))
            .add_extension(x509.SubjectAlternativeName([address]), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .sign(self._key, hashes.SHA256())
        )  # fmt: skip
        private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        return made.public_bytes(Encoding.PEM).decode().strip(), private.decode().strip()

    def server_context(self) -> ssl.SSLContext:
        """Return the context of a server that demands a certificate of this authority from clients."""
        certificate, key = self.issue("server")
        path = self.folder / "server.pem"
        path.write_text(f"{key}\n{certificate}\n")
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(self.file))
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_cert_chain(path)
        return context
