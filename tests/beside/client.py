"""Sends an entry of the corpus to a server, and tells what came of it."""

import socket
import time
from contextlib import suppress
from dataclasses import dataclass

from tests.beside.app import Ledger
from tests.beside.corpus import Entry
from tests.edge.world import Raw

BETWEEN_S = 0.005
"""What is sent in segments should be read in segments; where it is not, the outcome is the same."""

NEXT = b"GET /next HTTP/1.1\r\nhost: a\r\n\r\n"
RAN_NEXT = "GET /next 0"


@dataclass(frozen=True)
class Outcome:
    """The final answers; what the connection was afterwards, "hung" where it neither closed nor served; the ledger."""

    statuses: tuple[int, ...]
    end: str
    ran: tuple[str, ...]


def observe(entry: Entry, port: int, ledger: Ledger, silence_s: float, most: int) -> Outcome:
    """Send it, and read up to `most` answers. Who says nothing for `silence_s` seconds is taken to have finished."""
    with Raw(port) as raw:
        own = raw.socket.getsockname()[1]
        ledger.forget(own)
        raw.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with suppress(ConnectionError):  # who refuses a head need not read its end
            for number, segment in enumerate(entry.segments):
                if number:
                    time.sleep(BETWEEN_S)
                raw.send(segment)
        raw.socket.settimeout(silence_s)
        statuses: list[int] = []
        end = "open"
        while end == "open" and len(statuses) < most:
            try:
                if not raw.buffer and not raw.more():
                    end = "closed"
                    break
                status = raw.answer(entry.method).status
            except TimeoutError:
                break
            except ConnectionError:
                end = "closed"
                break
            if status >= 200 or status == 101:
                statuses.append(status)
            if status == 101:
                end = "tunnel"
        if end == "open":
            end = _end(raw) if statuses else "hung"
        ran = ledger.ran(own)
    return Outcome(tuple(statuses), end, ran[:-1] if end == "open" and ran and ran[-1] == RAN_NEXT else ran)


def _end(raw: Raw) -> str:
    """What a connection is when all answers have come: it serves one request more, or has closed, or hangs."""
    try:
        raw.send(NEXT)
        if not raw.buffer and not raw.more():
            return "closed"
        return "open" if raw.answer().status == 200 else "hung"
    except TimeoutError:
        return "hung"
    except ConnectionError:
        return "closed"
