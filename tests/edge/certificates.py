"""Certificates as the tests need them: real ones, made anew each time."""

import ssl
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import trustme
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import NameOID


@dataclass(frozen=True)
class Certificate:
    certfile: str
    keyfile: str
    authority: str

    @property
    def options(self) -> dict[str, str]:
        return {"ssl_certfile": self.certfile, "ssl_keyfile": self.keyfile}

    @property
    def believed(self) -> ssl.SSLContext:
        """For clients that trust it."""
        return ssl.create_default_context(cafile=self.authority)


def certificate(folder: Path, name: str = "localhost", locked: bool = False) -> Certificate:
    """`locked`: its key asks for a passphrase."""
    made = Certificate(*(str(folder / f"{name}.{kind}") for kind in ("pem", "key", "ca")))
    authority = trustme.CA()
    issued = authority.issue_cert(name, "127.0.0.1")
    authority.cert_pem.write_to_path(made.authority)
    for number, pem in enumerate(issued.cert_chain_pems):
        pem.write_to_path(made.certfile, append=number > 0)
    key = issued.private_key_pem.bytes()
    if locked:
        private = load_pem_private_key(key, None)
        key = private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret"))
    Path(made.keyfile).write_bytes(key)
    return made


def weak(folder: Path) -> tuple[str, str]:
    """A certificate and its key, which is shorter than anybody takes today."""
    key = rsa.generate_private_key(65_537, 1_024)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    today = datetime.now(UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(today)
        .not_valid_after(today + timedelta(days=1))
        .sign(key, SHA256())
    )
    certfile, keyfile = folder / "weak.pem", folder / "weak.key"
    certfile.write_bytes(made.public_bytes(Encoding.PEM))
    keyfile.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return str(certfile), str(keyfile)
