"""`httpx-sse` on a resumable route: the client comes back by itself whenever its connection ends."""

import httpx
from cases import run
from httpx_sse import ServerSentEvent, aconnect_sse

LAST = 100


async def events(url: str, _: str) -> None:
    found, connections = await _follow(url)
    assert connections == 1
    assert [int(event.data) for event in found] == list(range(LAST))


async def reconnect(_: str, relay: str) -> None:
    found, connections = await _follow(relay)
    assert connections > 2, "the relay has cut no connection"
    assert [int(event.data) for event in found] == list(range(LAST))


async def _follow(url: str) -> tuple[list[ServerSentEvent], int]:
    """Return all events of the route, and how many connections they took."""
    found: list[ServerSentEvent] = []
    connections = 0
    headers: dict[str, str] = {}
    async with httpx.AsyncClient(base_url=url, trust_env=False) as http:
        while len(found) < LAST:
            connections += 1
            try:
                async with aconnect_sse(http, "GET", "/count", params={"to": LAST}, headers=headers) as source:
                    async for event in source.aiter_sse():
                        if event.data:
                            found.append(event)
                            headers["last-event-id"] = event.id
            except httpx.TransportError:
                pass
    return found, connections


async def nothing_follows(url: str, _: str) -> None:
    found, _connections = await _follow(url)
    async with httpx.AsyncClient(base_url=url, trust_env=False) as http:
        answer = await http.get("/count", params={"to": LAST}, headers={"last-event-id": found[-1].id})
    assert answer.status_code == 204


run([events, reconnect, nothing_follows])
