"""Clients that upload slowly, flood a WebSocket or disconnect early, and a replica without file descriptors."""

import asyncio
import math
import socket
import time
from collections import Counter
from contextlib import AsyncExitStack, suppress
from functools import partial

from benchmarks.chaos.client import Client, Done, closed_loop, connected, latency_ms, new_id, ok, open_loop, talk
from benchmarks.chaos.report import Row
from benchmarks.chaos.shared import counted, lost
from benchmarks.chaos.system import System, Watch, seconds_until
from benchmarks.chaos.traffic import PROPER

LONELY = "lonely"
"""An application with one replica, which has 100 request slots and a health check every half second."""

CROWDED = "crowded"
"""An application with one replica, which has four request slots and a long wait queue."""

UPLOADS = 105
UPLOAD_RATE = 650
"""Bytes per second of each upload; more than `min_body_rate`."""
UPLOAD_SLOTS = 50
"""Slots that requests with slow bodies may hold: half of those of the replica."""
STEP_S = 0.1

FLOODS = {"empty fragments": (0x01, 0x00), "pings": (0x89, 0x89), "pongs": (0x8A, 0x8A)}
"""By kind: the first byte of the first frame, and of every other frame."""
AT_ONCE = 5_000
"""Frames per write."""
CLOSED_S = 5.0
"""Maximum time in seconds until the server closes a flood."""
MASK = bytes(4)

PATIENCE_S = 1.0
SERVICE_S = 0.05


async def slow_uploads(system: System, short: bool) -> list[Row]:
    found, begun, still_there, quiet = await _during_uploads(system, short, 60_000)
    return [
        lost("GET", found),
        Row("GET: maximum latency", latency_ms(found, 100), 1_000, "ms", clocked=True),
        Row("uploads whose handler started before the body was complete", begun, 0),
        Row("uploads rejected although they were fast enough", UPLOADS - still_there, 0),
        Row("time until no request was waiting or in flight", quiet, 3, "s", clocked=True),
    ]


async def large_slow_uploads(system: System, short: bool) -> list[Row]:
    found, begun, _, quiet = await _during_uploads(system, short, 200_000)
    return [
        lost("GET", found),
        Row("GET: maximum latency", latency_ms(found, 100), 1_000, "ms", clocked=True),
        Row("slots that the uploads held", begun, UPLOAD_SLOTS),
        Row("slots for slow bodies that were free", UPLOAD_SLOTS - begun, 0),
        Row("time until no request was waiting or in flight", quiet, 3, "s", clocked=True),
    ]


async def _during_uploads(system: System, short: bool, length: int) -> tuple[list[Done], int, int, float]:
    """Send GET requests while `UPLOADS` clients upload bodies slowly.

    Return the responses, the number of uploads whose handler started, the number that the server did not end, and the
    seconds until no request was left.
    """
    seconds = 4 if short else 30
    async with AsyncExitStack() as stack:
        app = await stack.enter_async_context(system.deployed(LONELY, LONELY))
        client = await stack.enter_async_context(app.client())
        ids = [new_id() for _ in range(UPLOADS)]
        uploading: list[socket.socket] = []
        for id in ids:
            connection = await connected(app.address)
            stack.callback(connection.close)
            uploading.append(connection)
            await _send(connection, client.head("POST", "/upload", id, f"content-length: {length}"))
        over = asyncio.Event()
        drip = asyncio.gather(*(_drip(each, over) for each in uploading))
        found = await open_loop(client.get, 20, seconds)
        begun = len(app.ledger.of(ids))
        over.set()
        still_there = sum(await drip)
    return found, begun, still_there, await seconds_until(system.is_quiet, 5)


async def _drip(connection: socket.socket, over: asyncio.Event) -> bool:
    """Send the body slowly until `over` is set. Return whether the server neither responded nor closed by then."""
    began, sent = time.monotonic(), 0
    while not over.is_set():
        due = round((time.monotonic() - began + STEP_S) * UPLOAD_RATE)  # catches up after a delay of this client
        await _send(connection, b"s" * (due - sent))
        sent = due
        with suppress(TimeoutError):
            await asyncio.wait_for(over.wait(), STEP_S)
    try:
        connection.recv(1)
    except BlockingIOError:
        return True
    return False


async def floods(system: System, short: bool) -> list[Row]:
    seconds = 3 if short else 20
    codes: Counter[str] = Counter()
    closed_s: list[float] = []
    async with AsyncExitStack() as stack:
        app = await stack.enter_async_context(system.deployed(LONELY, LONELY))
        client = await stack.enter_async_context(app.client())
        before = await asyncio.to_thread(app.replicas, "app")
        over = asyncio.Event()
        talking = asyncio.create_task(talk(app.address, f"{app.prefix}/echo", 0.2, over))

        async def flood() -> None:
            for first, others in FLOODS.values():
                until = time.monotonic() + seconds
                while time.monotonic() < until:
                    began = time.monotonic()
                    codes[await _flood(app, client, first, others)] += 1
                    closed_s.append(time.monotonic() - began)
            over.set()

        found, _ = await asyncio.gather(open_loop(client.get, 20, math.inf, over), flood())
        dialogue = await talking
        after = await asyncio.to_thread(app.replicas, "app")
    seen = ", ".join(f"{count} {code}" for code, count in codes.most_common())
    return [
        Row("floods that were sent", len(closed_s), len(FLOODS), at_least=True),
        Row("floods closed without code 1008", codes.total() - codes["1008"], 0, saw=seen),
        Row("maximum time until a flood was closed", max(closed_s), CLOSED_S, "s", clocked=True),
        lost("GET during the floods", found),
        Row("GET: maximum latency", latency_ms(found, 100), 1_000, "ms", clocked=True),
        lost("messages over another WebSocket", dialogue.messages),
        Row("another WebSocket: ended abnormally", dialogue.closed not in PROPER, 0, saw=dialogue.closed),
        Row("replica processes that started or ended", len(set(before.values()) ^ set(after.values())), 0),
    ]


async def _flood(system: System, client: Client, first: int, others: int) -> str:
    """Return the code with which the server closes the WebSocket; empty if it sends none, "never" on a timeout."""
    loop = asyncio.get_running_loop()
    fields = ("upgrade: websocket", "connection: Upgrade", "sec-websocket-version: 13")
    key = "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ=="
    connection = await connected(system.address)
    frames = (bytes((others, 0x80)) + MASK) * AT_ONCE

    async def send() -> None:
        await _send(connection, bytes((first, 0x80)) + MASK)
        with suppress(OSError):
            while True:
                await loop.sock_sendall(connection, frames)

    sending: asyncio.Task[None] | None = None
    try:
        await _send(connection, client.head("GET", "/echo", new_id(), *fields, key))
        said = b""
        async with asyncio.timeout(2 * CLOSED_S):
            while b"\r\n\r\n" not in said:
                said += await loop.sock_recv(connection, 4_096)
            sending = asyncio.create_task(send())
            with suppress(OSError):
                while more := await loop.sock_recv(connection, 65_536):
                    said += more
        return _close_code(said.partition(b"\r\n\r\n")[2])
    except TimeoutError:
        return "never"
    finally:
        if sending is not None:
            sending.cancel()
            with suppress(asyncio.CancelledError):
                await sending
        connection.close()


def _close_code(frames: bytes) -> str:
    """Return the code of the close frame in the server's frames; each frame has a length of one byte."""
    at = 0
    while at + 1 < len(frames):
        length = frames[at + 1]
        if frames[at] & 0x0F == 0x8:
            return str(int.from_bytes(frames[at + 2 : at + 4], "big"))
        at += 2 + length
    return ""


async def no_descriptors(system: System, short: bool) -> list[Row]:
    async with AsyncExitStack() as stack:
        app = await stack.enter_async_context(system.deployed(LONELY, LONELY))
        client = await stack.enter_async_context(app.client())
        (victim,) = (await asyncio.to_thread(app.replicas, "app")).values()
        watch = await stack.enter_async_context(Watch(app))
        done = await client.post(path="/no-more-files")
        replaced = await seconds_until(lambda: _others(app, victim), 60)
        named = any("RLIMIT_NOFILE" in str(look.status) for look in watch.looks)
        found = await open_loop(client.get, 20, 1 if short else 10)
    return [
        lost("the request that exhausts the file descriptors", [done]),
        Row("the status names the limit", named, 1, at_least=True),
        Row("time until another replica ran", replaced, 30, "s", clocked=True),
        lost("GET afterwards", found),
    ]


def _others(system: System, victim: int) -> bool:
    return any(pid != victim for pid in system.replicas("app").values())


async def impatient_clients(system: System, short: bool) -> list[Row]:
    seconds = 5 if short else 30
    path = f"/sleep/{SERVICE_S}"
    async with AsyncExitStack() as stack:
        app = await stack.enter_async_context(system.deployed(CROWDED, CROWDED))
        patient = await stack.enter_async_context(app.client())
        get = partial(patient.get, path=path)
        capacity = len(ok(await closed_loop(get, 8, seconds / 2))) / (seconds / 2)
        client = await stack.enter_async_context(app.client(PATIENCE_S))
        found = await open_loop(partial(client.get, path=path), 3.75 * capacity, seconds)
        begun = len(app.ledger.of(done.id for done in found))
        quiet = await seconds_until(app.is_quiet, 5)
    served = len(ok(found))
    return [
        Row("C", capacity, 10, "requests/s", at_least=True, saw="4 concurrent requests of 50 ms", clocked=True),
        Row(
            "goodput relative to C",
            served / seconds / capacity,
            0.7,
            "×",
            at_least=True,
            saw=counted(found),
            clocked=True,
        ),
        Row("share of started handlers whose client was still connected", served / begun, 0.5, "×", at_least=True),
        Row("time until no request was waiting or in flight", quiet, 3, "s", clocked=True),
    ]


async def _send(connection: socket.socket, data: bytes) -> None:
    with suppress(OSError):  # the server may close early; its response is read afterwards
        await asyncio.get_running_loop().sock_sendall(connection, data)
