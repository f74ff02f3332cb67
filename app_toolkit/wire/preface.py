"""Mutual authentication of caller and replica on a connection between nodes.

Over TCP, any process may listen or connect. So neither end sends or reads any other data before the other end has
answered its challenge:

    caller:   app-toolkit http 2 NONCE
    replica:  NONCE PROOF
    caller:   PROOF

A proof is an HMAC-SHA256, keyed with the secret, of the name of the proving side, the caller's first line, the address
to which the caller has connected, and both nonces. So a proof does not reveal the secret. It is not valid on another
connection, it cannot be reflected to its sender, and it cannot be obtained from a replica at another address.

On a Unix socket, the kernel authenticates the other end (`sockets.check_peer`), and the connection begins with HTTP.
"""

import asyncio
import hashlib
import hmac
import secrets
import socket
from typing import Any, Literal

Side = Literal["caller", "replica"]

BEGINNING = b"app-toolkit http 2 "
"""The beginning of a caller's first line. Its nonce and a newline follow."""

NONCE = 32
PROOF = 64
"""The lengths of a nonce and a proof, in hexadecimal digits."""

RESPONSE = NONCE + 1 + PROOF + 1
LAST = PROOF + 1
"""The lengths of the replica's line and of the caller's second line, in bytes."""


class Unproven(ConnectionError):
    """The other end did not prove that it has the secret."""


def first_line() -> bytes:
    return b"%b%b\n" % (BEGINNING, new_nonce())


def new_nonce() -> bytes:
    return secrets.token_hex(NONCE // 2).encode()


def prove(secret: bytes, side: Side, asked: bytes, address: Any, nonce: bytes) -> bytes:
    """Return the proof that a side has the secret.

    Parameters:
        secret: The secret.
        side: The proving side.
        asked: The caller's first line.
        address: The replica's address, as returned by the socket.
        nonce: The replica's nonce.
    """
    signed = b"%b %b %b %b" % (side.encode(), str(address[:2]).encode(), nonce, asked)
    return hmac.new(secret, signed, hashlib.sha256).hexdigest().encode()


def respond(secret: bytes, asked: bytes, address: Any) -> tuple[bytes, bytes]:
    """Return the replica's line, and the second line that the caller must send."""
    nonce = new_nonce()
    expected = prove(secret, "caller", asked, address, nonce)
    return b"%b %b\n" % (nonce, prove(secret, "replica", asked, address, nonce)), b"%b\n" % expected


def read_response(secret: bytes, asked: bytes, address: Any, response: bytes) -> bytes:
    """Return the caller's second line. Raise `Unproven` if the replica's line does not contain a valid proof."""
    nonce = response[:NONCE]
    if not hmac.compare_digest(response, b"%b %b\n" % (nonce, prove(secret, "replica", asked, address, nonce))):
        raise Unproven("the process that listens there did not prove that it has the secret of this instance")
    return b"%b\n" % prove(secret, "caller", asked, address, nonce)


async def introduce(connection: socket.socket, secret: bytes) -> None:
    """Authenticate both ends, as the caller, on a non-blocking socket. Raise `Unproven` or another `OSError`."""
    loop = asyncio.get_running_loop()
    asked = first_line()
    await loop.sock_sendall(connection, asked)
    response = b""
    while len(response) < RESPONSE:
        more = await loop.sock_recv(connection, RESPONSE - len(response))
        if not more:
            raise Unproven("the process that listens there did not prove that it has the secret of this instance")
        response += more
    await loop.sock_sendall(connection, read_response(secret, asked, connection.getpeername(), response))
