"""Certificates as the tests need them: real ones, made by OpenSSL's own command."""

import ssl
import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Certificate:
    certfile: str
    keyfile: str

    @property
    def options(self) -> dict[str, str]:
        return {"ssl_certfile": self.certfile, "ssl_keyfile": self.keyfile}

    @property
    def believed(self) -> ssl.SSLContext:
        """For clients that trust it."""
        return ssl.create_default_context(cafile=self.certfile)


def certificate(folder: Path, name: str = "localhost", locked: bool = False) -> Certificate:
    made = Certificate(str(folder / f"{name}.pem"), str(folder / f"{name}.key"))
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-days", "2"]
    command += ["-passout", "pass:secret"] if locked else ["-nodes"]
    command += ["-subj", f"/CN={name}", "-addext", f"subjectAltName=DNS:{name},IP:127.0.0.1"]
    subprocess.run([*command, "-keyout", made.keyfile, "-out", made.certfile], check=True, capture_output=True)
    return made
