"""A certificate authority of a test's own, and a server's certificate from it."""

from __future__ import annotations

import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

AUTHORITY_KEY = "authority.key"


def authority_and_server(folder: Path, address: str) -> tuple[Path, Path]:
    """(the authority's certificate, the server's key and certificate), PEM, for an IP address and one day."""
    authority_key, server_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    authority = _certificate("test authority", authority_key, "test authority", authority_key, address, is_ca=True)
    server = _certificate(address, server_key, "test authority", authority_key, address, is_ca=False)
    authority_file, server_file = folder / "ca.crt", folder / "server.pem"
    authority_file.write_bytes(authority.public_bytes(serialization.Encoding.PEM))
    (folder / AUTHORITY_KEY).write_bytes(_private(authority_key))
    server_file.write_bytes(_private(server_key) + server.public_bytes(serialization.Encoding.PEM))
    return authority_file, server_file


def client_certificate(folder: Path, name: str) -> Path:
    """The key and certificate of a client, PEM, by the authority in `folder` that `authority_and_server` left there."""
    authority_key = serialization.load_pem_private_key((folder / AUTHORITY_KEY).read_bytes(), None)
    assert isinstance(authority_key, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = _certificate(name, key, "test authority", authority_key, "127.0.0.1", is_ca=False)
    file = folder / f"{name}.pem"
    file.write_bytes(_private(key) + certificate.public_bytes(serialization.Encoding.PEM))
    return file


def _private(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _certificate(
    subject: str,
    key: ec.EllipticCurvePrivateKey,
    issuer: str,
    issuer_key: ec.EllipticCurvePrivateKey,
    address: str,
    *,
    is_ca: bool,
) -> x509.Certificate:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))]), critical=False)
        .sign(issuer_key, hashes.SHA256())
    )
