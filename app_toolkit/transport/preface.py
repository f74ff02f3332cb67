"""How the two ends of a connection between nodes find out that both know the secret.

Over TCP anybody may listen, and anybody may connect. So neither end says, or reads, anything else before the other one
has answered its challenge:

    caller:   app-toolkit http 2 NONCE
    replica:  NONCE PROOF
    caller:   PROOF

A proof is an HMAC-SHA256, keyed with the secret, of the side that proves, the caller's first line, the address that
the caller has dialled, and both nonces. So nobody learns the secret from it; it is worth nothing on another
connection; it cannot be sent back to the side that made it; and a replica at another address cannot be asked for it.

On a Unix socket the kernel says who is at the other end (`sockets.check_peer`). There a connection begins with HTTP.
"""

import asyncio
import hashlib
import hmac
import secrets
import socket
from typing import Any, Literal

Side = Literal["caller", "replica"]

BEGINNING = b"app-toolkit http 2 "
"""Of a caller's first line; its nonce and an end of line follow."""

NONCE = 32
PROOF = 64
"""Bytes, all of them hexadecimal digits."""

ANSWER = NONCE + 1 + PROOF + 1
LAST = PROOF + 1
"""Bytes of the replica's line, and of the caller's second one."""


class Unproven(ConnectionError):
    """The other end does not know the secret."""


def first_line() -> bytes:
    return b"%b%b\n" % (BEGINNING, new_nonce())


def new_nonce() -> bytes:
    return secrets.token_hex(NONCE // 2).encode()


def prove(secret: bytes, side: Side, asked: bytes, address: Any, nonce: bytes) -> bytes:
    """That a side knows the secret.

    `asked` is the caller's first line, `nonce` the replica's; `address`, of the replica, is as the kernel knows it.
    """
    signed = b"%b %b %b %b" % (side.encode(), str(address[:2]).encode(), nonce, asked)
    return hmac.new(secret, signed, hashlib.sha256).hexdigest().encode()


def answer(secret: bytes, asked: bytes, address: Any) -> tuple[bytes, bytes]:
    """The replica's line, and the caller's second one that it has to wait for."""
    nonce = new_nonce()
    expected = prove(secret, "caller", asked, address, nonce)
    return b"%b %b\n" % (nonce, prove(secret, "replica", asked, address, nonce)), b"%b\n" % expected


def read_answer(secret: bytes, asked: bytes, address: Any, answered: bytes) -> bytes:
    """The caller's second line. Raises `Unproven` unless the first one was answered by who knows the secret."""
    nonce = answered[:NONCE]
    if not hmac.compare_digest(answered, b"%b %b\n" % (nonce, prove(secret, "replica", asked, address, nonce))):
        raise Unproven("the process that listens there does not know the secret of this instance")
    return b"%b\n" % prove(secret, "caller", asked, address, nonce)


async def introduce(connection: socket.socket, secret: bytes) -> None:
    """The caller's side of it, on a connection that does not block. Raises `Unproven` and other `OSError`s."""
    loop = asyncio.get_running_loop()
    asked = first_line()
    await loop.sock_sendall(connection, asked)
    answered = b""
    while len(answered) < ANSWER:
        more = await loop.sock_recv(connection, ANSWER - len(answered))
        if not more:
            raise Unproven("the process that listens there did not prove that it knows the secret of this instance")
        answered += more
    await loop.sock_sendall(connection, read_answer(secret, asked, connection.getpeername(), answered))
