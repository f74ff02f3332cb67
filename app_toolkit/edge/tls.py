"""The TLS certificate of the proxies."""

import ssl

from app_toolkit.config.models import HTTPOptions
from app_toolkit.errors import StartupError


def context(options: HTTPOptions) -> ssl.SSLContext | None:
    """Return an SSL context like that of uvicorn with the same options. None: TLS is not configured.

    Raises `StartupError` if the certificate or the key is invalid.
    """
    certificate, key = options.ssl_certfile, options.ssl_keyfile
    if certificate is None:
        if key is not None:
            raise StartupError(f"ssl_keyfile {key!r} is set without ssl_certfile")
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    for name, path in (("certificate", certificate), ("key", key)):
        try:
            if path is not None:
                open(path, "rb").close()
        except OSError as error:
            raise StartupError(f"the {name} {path!r} cannot be read: {error.strerror}") from None
    try:
        # Without a password callback, OpenSSL would ask for the password of an encrypted key at the terminal.
        context.load_cert_chain(certificate, key, password=lambda: "")
    except (ssl.SSLError, ValueError) as error:
        files = f"{certificate!r} is" if key is None else f"{certificate!r} and {key!r} are"
        raise StartupError(f"{files} not a valid certificate and key: {_why(error)}") from None
    return context


def _why(error: Exception) -> str:
    reason = getattr(error, "reason", None)
    if reason is None:
        return "not a PEM file, or encrypted with a password"
    if reason == "KEY_VALUES_MISMATCH":
        return "the key belongs to another certificate"
    return f"OpenSSL refuses them ({reason.replace('_', ' ').lower()})"
