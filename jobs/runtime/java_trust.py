"""Java trusts the authorities in SSL_CERT_FILE, as delta-rs and OpenSSL do by themselves: a store may have its own.

`python -m jobs.runtime.java_trust` prints the option of Java, for an executor.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

from jobs.runtime.errors import Refused

CERTIFICATES_VARIABLE = "SSL_CERT_FILE"


def java_trust(environment: Mapping[str, str]) -> str:
    """The option of Java, whose file of authorities is made from the PEM file; empty where the variable is not set.

    Raises Refused for a file that cannot be read, or has no certificate.
    """
    if not (given := environment.get(CERTIFICATES_VARIABLE)):
        return ""
    # Only who has a store with an authority of its own pays for these.
    from cryptography.hazmat.primitives.serialization import NoEncryption
    from cryptography.hazmat.primitives.serialization.pkcs12 import PKCS12Certificate, serialize_java_truststore
    from cryptography.x509 import load_pem_x509_certificates

    try:
        pem = Path(given).read_bytes()
        certificates = [
            PKCS12Certificate(certificate, b"%d" % number)
            for number, certificate in enumerate(load_pem_x509_certificates(pem))
        ]
    except (OSError, ValueError) as error:
        raise Refused(f"{CERTIFICATES_VARIABLE} must name a file of certificates (PEM): {error}") from None
    # Drivers with the same authorities make the same file.
    file = Path(tempfile.gettempdir()) / f"weir-authorities-{os.getuid()}-{sha256(pem).hexdigest()[:16]}.p12"
    descriptor, scratch = tempfile.mkstemp(dir=file.parent, prefix=file.name)
    with os.fdopen(descriptor, "wb") as out:
        out.write(serialize_java_truststore(certificates, NoEncryption()))
    Path(scratch).replace(file)
    return f"-Djavax.net.ssl.trustStore={file} -Djavax.net.ssl.trustStoreType=PKCS12"


if __name__ == "__main__":
    print(java_trust(os.environ))
