"""A private CA, and the certificates that it issues for servers on loopback."""

import ipaddress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

DAY = timedelta(days=1)


@dataclass(frozen=True)
class Certificate:
    """What a server needs for TLS, in the PEM format."""

    chain: str
    key: str


class Authority:
    """A CA that only this test knows."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "perdure tests")])
        about = x509.BasicConstraints(ca=True, path_length=0)
        self.certificate = self._issued(self._name, self._key.public_key(), about)

    def server(self) -> Certificate:
        """Return a certificate for 127.0.0.1, but not for localhost."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "server")])
        address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return Certificate(self._issued(name, key.public_key(), address), private.decode())

    def _issued(self, name: x509.Name, key: ec.EllipticCurvePublicKey, about: x509.ExtensionType) -> str:
        now = datetime.now(UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - DAY)
            .not_valid_after(now + DAY)
            .add_extension(about, critical=isinstance(about, x509.BasicConstraints))
        )
        return builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()
