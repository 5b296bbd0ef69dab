"""A certificate authority of a test's own, and a server's certificate from it."""

from __future__ import annotations

import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


def authority_and_server(folder: Path, address: str) -> tuple[Path, Path]:
    """(the authority's certificate, the server's key and certificate), PEM, for an IP address and one day."""
    authority_key, server_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    authority = _certificate("test authority", authority_key, "test authority", authority_key, address, is_ca=True)
    server = _certificate(address, server_key, "test authority", authority_key, address, is_ca=False)
    authority_file, server_file = folder / "ca.crt", folder / "server.pem"
    authority_file.write_bytes(authority.public_bytes(serialization.Encoding.PEM))
    private = server_key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    server_file.write_bytes(private + server.public_bytes(serialization.Encoding.PEM))
    return authority_file, server_file


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
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))]), critical=False)
        .sign(issuer_key, hashes.SHA256())
    )
