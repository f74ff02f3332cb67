"""Strawberry: a query over HTTP, and a subscription over a WebSocket."""

import json
from collections.abc import AsyncIterator

import httpx
import strawberry
from fastapi import APIRouter, FastAPI
from strawberry.fastapi import GraphQLRouter
from websockets.asyncio.client import connect

from app_toolkit import DeploymentConfig, Toolkit


@strawberry.type
class Query:
    @strawberry.field
    def double(self, value: int) -> int:
        return 2 * value


@strawberry.type
class Subscription:
    @strawberry.subscription
    async def count(self, to: int) -> AsyncIterator[int]:
        for number in range(to):
            yield number


def router() -> APIRouter:
    return GraphQLRouter(strawberry.Schema(Query, subscription=Subscription), path="/graphql")


app = FastAPI()
app.include_router(router())

pinned = Toolkit()
pinned.include_router(router(), deployment=DeploymentConfig(name="graphql", num_replicas=1))


async def query(url: str, number: int) -> None:
    async with httpx.AsyncClient(base_url=url, timeout=10) as client:
        for value in range(number, number + 3):
            answer = await client.post("/graphql", json={"query": f"{{ double(value: {value}) }}"})
            assert answer.json() == {"data": {"double": 2 * value}}, answer.text


async def subscription(url: str, number: int) -> None:
    address = url.replace("http", "ws", 1) + "/graphql"
    async with connect(address, subprotocols=["graphql-transport-ws"]) as socket:
        await socket.send(json.dumps({"type": "connection_init"}))
        assert json.loads(await socket.recv())["type"] == "connection_ack"
        expected = {"query": f"subscription {{ count(to: {number + 1}) }}"}
        await socket.send(json.dumps({"id": "1", "type": "subscribe", "payload": expected}))
        for count in range(number + 1):
            assert json.loads(await socket.recv())["payload"] == {"data": {"count": count}}
        assert json.loads(await socket.recv())["type"] == "complete"
