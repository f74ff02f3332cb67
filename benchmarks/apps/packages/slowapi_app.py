"""slowapi: five requests a minute for each user, counted in memory."""

import uuid
from typing import TypeVar

import httpx
from fastapi import FastAPI, Request
from pins import ONE
from slowapi import Limiter, _rate_limit_exceeded_handler
from slowapi.errors import RateLimitExceeded

from app_toolkit import Toolkit

A = TypeVar("A", bound=FastAPI)


def with_limit(app: A) -> A:
    limiter = Limiter(key_func=lambda request: request.headers["x-user"])
    app.state.limiter = limiter
    app.add_exception_handler(RateLimitExceeded, _rate_limit_exceeded_handler)

    @app.get("/limited")
    @limiter.limit("5/minute")
    async def limited(request: Request) -> str:
        return "ok"

    return app


app = with_limit(FastAPI())
pinned = with_limit(Toolkit(deployment=ONE))


async def limit(url: str, number: int) -> None:
    async with httpx.AsyncClient(base_url=url, timeout=10, headers={"x-user": str(uuid.uuid4())}) as client:
        answers = [(await client.get("/limited")).status_code for _ in range(8)]
        assert answers == [200] * 5 + [429] * 3, answers
