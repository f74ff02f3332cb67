"""Encryption of the values in a state store: a copy of the store, such as a dump of Redis, contains no secret."""

import os
from functools import cached_property

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from app_toolkit.control.checkpoint import corrupt

HEAD = b"app_toolkit AES-256-GCM\n"
"""The beginning of an encrypted value. The nonce and the ciphertext follow."""

NONCE_BYTES = 12
"""The size of the random nonce of a value, as in NIST SP 800-38D."""

REMEDY = "start the cluster with the access token that it had"
"""What helps if a value cannot be decrypted."""


class Encryption:
    """Encrypts values with AES-256-GCM. HKDF (RFC 5869) derives the key from the access token of the cluster.

    Each value is bound to its key in the store, so a value that was changed, or copied from another key, is refused.
    """

    def __init__(self, token: str | None) -> None:
        """`token`: the access token; None: the cluster has none, and values are stored as they are."""
        self._token = token

    def encrypt(self, key: str, value: bytes) -> bytes:
        """Return the value to store under this key."""
        if self._cipher is None:
            return value
        nonce = os.urandom(NONCE_BYTES)
        return b"".join((HEAD, nonce, self._cipher.encrypt(nonce, value, key.encode())))

    def decrypt(self, key: str, stored: bytes) -> bytes:
        """Return the value that is stored under this key.

        A value that is not encrypted is returned as it is: the cluster may have had no token when it was written.
        Raises `CorruptValue` if the value was encrypted with another token, or changed.
        """
        if not stored.startswith(HEAD):
            return stored
        if self._cipher is None:
            raise corrupt(key, "it is encrypted, and this process has no access token", REMEDY)
        begin = len(HEAD) + NONCE_BYTES
        nonce, ciphertext = stored[len(HEAD) : begin], stored[begin:]
        try:
            return self._cipher.decrypt(nonce, ciphertext, key.encode())
        except (InvalidTag, ValueError):
            raise corrupt(key, "it was encrypted with another access token, or changed", REMEDY) from None

    @cached_property
    def _cipher(self) -> AESGCM | None:
        if self._token is None:
            return None
        return AESGCM(HKDF(SHA256(), 32, salt=None, info=b"app_toolkit state store").derive(self._token.encode()))
