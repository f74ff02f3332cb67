"""Budgets of API keys: the decision over random days, and what routers count and refuse."""

import math
from fractions import Fraction
from typing import Any

import openai
import pytest
from fastapi import Depends, FastAPI
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import REGISTRY
from starlette.testclient import TestClient

from app_toolkit import ChatError, ConfigError
from app_toolkit.chat import (
    Cost,
    Embedding,
    FinishEvent,
    KeyLimits,
    SQLConversationStore,
    TextEvent,
    UsageEvent,
    ai_sdk_router,
    anthropic_router,
    api_keys,
    fallback,
    openai_router,
    titled,
    usage,
    websocket_router,
)
from app_toolkit.chat.allowances import duration
from app_toolkit.chat.budgets import DAY_S, MAX_TOKENS, NANOS, Spent, over_budget, tokens_of
from tests.chat.scripted import Scripted
from tests.chat.served import PausedModel, asking, in_process
from tests.patience import until

pytestmark = pytest.mark.anyio

KEYS = {"ada": "ada-0123456789abcdef", "bob": "bob-0123456789abcdef"}
ADA, BOB = ({"authorization": f"Bearer {key}"} for key in KEYS.values())
BODY = {"model": "default", "messages": [{"role": "user", "content": "hello"}]}
UI = {"id": "chat", "messages": [{"id": "1", "role": "user", "parts": [{"type": "text", "text": "hello"}]}]}
MESSAGE = {**BODY, "max_tokens": 9}
USAGE = UsageEvent(70, 30, reasoning_tokens=10, cached_tokens=20)

TIMES = st.floats(0, 4e9)
TOKENS = st.integers(-5, 10**30)
PRICES = st.floats(0, 1e6)


# The decision


@given(st.lists(st.tuples(TIMES, st.integers(0, 10**6)), max_size=20), st.integers(1, 10**6))
def test_a_request_is_admitted_exactly_while_the_tokens_of_the_day_are_below_the_limit(
    responses: list[tuple[float, int]], most: int
) -> None:
    spent, latest, sums = Spent(0), 0, {0: 0}
    for now, tokens in responses:
        latest = max(latest, int(now // DAY_S))
        over = over_budget(KeyLimits(max_tokens_per_day=most), spent, now)
        assert (over is None) == (sums.setdefault(latest, 0) < most)
        if over is not None:
            assert (over.limit, over.used) == ("max_tokens_per_day", sums[latest])
            assert over.retry_after_s == max(0.0, (latest + 1) * DAY_S - now)
        sums[latest] += tokens
        spent = spent.at(now).plus(tokens, 0)


@given(st.integers(0, 30_000), st.floats(0, DAY_S - 1))
def test_a_clock_that_goes_back_gives_no_new_budget(day: int, seconds: float) -> None:
    spent = Spent(day + 1).plus(10, 0)
    assert over_budget(KeyLimits(max_tokens_per_day=10), spent, day * DAY_S + seconds) is not None
    assert over_budget(KeyLimits(max_tokens_per_day=10), spent, (day + 2) * DAY_S) is None


@given(TOKENS, TOKENS, TOKENS, PRICES, PRICES, st.none() | PRICES)
def test_a_cost_is_exact_up_to_the_last_digit_and_bounded(
    prompt: int, response: int, cached: int, input: float, output: float, cached_price: float | None
) -> None:
    usage = UsageEvent(prompt, response, 0, cached)
    paid, answer = (min(max(0, tokens), MAX_TOKENS) for tokens in (prompt, response))
    reused = min(paid, max(0, cached))
    price = input if cached_price is None else cached_price
    exact = (Fraction(input) * (paid - reused) + Fraction(price) * reused + Fraction(output) * answer) / 1_000_000
    assert 0 <= Cost(input, output, cached_price).nanos(usage) - exact * NANOS < 1
    assert tokens_of(usage) == paid + answer <= 2 * MAX_TOKENS


@given(st.integers(0, 10**7))
def test_a_duration_is_written_as_openai_writes_it(seconds: int) -> None:
    text, total = duration(seconds), 0
    for unit, factor in (("h", 3_600), ("m", 60), ("s", 1)):
        if unit in text:
            number, text = text.split(unit)
            total += int(number) * factor
    assert total == seconds


def test_durations_are_rounded_up() -> None:
    assert [duration(seconds) for seconds in (0.2, 59.1, 360, 86_399.5)] == ["1s", "1m0s", "6m0s", "24h0m0s"]


# The refusal


def app_of(model: Any, clock: list[float], **options: Any) -> FastAPI:
    """All routers of a model, with the same keys. The date is `clock[0]`."""
    keys, app = api_keys(KEYS, date=lambda: clock[0], **options), FastAPI()
    for prefix, router in (
        ("/v1", openai_router(model, embeddings={"vectors": embed})),
        ("/claude", anthropic_router(model)),
        ("/chat", ai_sdk_router(model, resume=False)),
        ("/ws", websocket_router(model)),
    ):
        app.include_router(router, prefix=prefix, dependencies=[Depends(keys)])
    return app


async def embed(texts: Any) -> list[Embedding]:
    return [Embedding([1.0], 60) for _ in texts]


async def test_a_key_without_tokens_left_is_refused_until_the_next_day_before_the_model_runs() -> None:
    clock, model = [10 * DAY_S - 90.5], Scripted([TextEvent("hi"), USAGE])
    app = app_of(model, clock, max_tokens_per_day=150, max_per_minute=60)
    sentence = "the API key has used 200 tokens today (UTC), and its limit is 150"
    async with in_process(app) as http:
        first = await http.post("/v1/chat/completions", json=BODY, headers=ADA)
        assert first.headers["x-ratelimit-remaining-tokens"] == "150"
        second = await http.post("/claude/messages", json=MESSAGE, headers=ADA)
        assert (first.status_code, second.status_code) == (200, 200)
        openai = await http.post("/v1/chat/completions", json=BODY, headers=ADA)
        claude = await http.post("/claude/messages", json=MESSAGE, headers=ADA)
        shown = await http.post("/chat", json=UI, headers=ADA)
        vectors = await http.post("/v1/embeddings", json={"model": "vectors", "input": "a"}, headers=ADA)
        for refused in (openai, claude, shown, vectors):
            assert (refused.status_code, refused.headers["retry-after"]) == (429, "91")
            assert refused.headers["x-should-retry"] == "false"
            assert sentence in refused.text
        assert openai.json()["error"]["code"] == "rate_limit_exceeded"
        assert claude.json()["error"]["type"] == "rate_limit_error"
        assert shown.text == sentence
        assert len(model.requests) == 2
        assert (await http.get("/v1/models", headers=ADA)).status_code == 200
        assert (await http.post("/chat", json=UI, headers=BOB)).status_code == 200
        clock[0] = 10 * DAY_S
        assert (await http.post("/chat", json=UI, headers=ADA)).status_code == 200


def test_a_websocket_gets_the_refusal_as_the_error_of_its_response() -> None:
    app = app_of(Scripted([TextEvent("hi"), USAGE]), [0.0], max_tokens_per_day=100)
    with TestClient(app).websocket_connect("/ws", headers=ADA) as websocket:
        for id, last in (("admitted", "finish"), ("refused", "error")):
            websocket.send_json({"type": "chat", "id": id, "messages": BODY["messages"]})
            while (event := websocket.receive_json())["type"] not in ("finish", "error"):
                assert event["id"] == id
            assert event["type"] == last, event
    assert "has used 100 tokens today" in event["message"]


async def test_the_sdk_of_openai_reads_the_fields_and_does_not_wait_for_the_next_day() -> None:
    app, statuses = app_of(Scripted([TextEvent("hi"), USAGE]), [DAY_S - 90.0], max_tokens_per_day=100), []

    @app.middleware("http")
    async def noted(request: Any, call_next: Any) -> Any:
        response = await call_next(request)
        statuses.append(response.status_code)
        return response

    async with asking(app) as http:
        client = openai.AsyncOpenAI(base_url=f"{http.base_url}/v1", api_key=KEYS["ada"], max_retries=2)
        async with client:
            raw = await client.chat.completions.with_raw_response.create(**BODY)
            assert raw.headers["x-ratelimit-remaining-tokens"] == "100"
            with pytest.raises(openai.RateLimitError, match="has used 100 tokens today"):
                await client.chat.completions.create(**BODY)
    assert statuses == [200, 429]


async def test_each_response_says_what_is_left_in_the_fields_of_its_protocol() -> None:
    app = app_of(Scripted([TextEvent("hi"), USAGE]), [9.5 * DAY_S], max_tokens_per_day=150, max_per_minute=9)
    async with in_process(app) as http:
        first = await http.post("/v1/chat/completions", json={**BODY, "stream": True}, headers=ADA)
        claude = await http.post("/claude/messages", json=MESSAGE, headers=ADA)
        refused = await http.post("/v1/responses", json={"model": "default", "input": "hi"}, headers=ADA)
    names = [f"x-ratelimit-{kind}-{of}" for of in ("requests", "tokens") for kind in ("limit", "remaining", "reset")]
    assert [first.headers[name] for name in names] == ["9", "8", "1m0s", "150", "150", "12h0m0s"]
    assert [refused.headers[name] for name in names] == ["9", "7", "1m0s", "150", "0", "12h0m0s"]
    assert claude.headers["anthropic-ratelimit-requests-remaining"] == "7"
    assert claude.headers["anthropic-ratelimit-tokens-limit"] == "150"
    assert claude.headers["anthropic-ratelimit-tokens-remaining"] == "50"
    assert claude.headers["anthropic-ratelimit-tokens-reset"].endswith("Z")
    assert "x-ratelimit-limit-tokens" not in claude.headers


async def test_money_is_limited_by_the_prices_of_the_models_and_keys_have_limits_of_their_own() -> None:
    costs = {"default": Cost(input=1_000, output=10_000, cached=100)}  # 0.05 + 0.002 + 0.3
    limits = {"bob": KeyLimits(max_cost_per_day=0.352)}
    app = app_of(Scripted([TextEvent("hi"), USAGE]), [0.0], max_cost_per_day=0.353, limits=limits, costs=costs)
    async with in_process(app) as http:
        statuses = {
            name: [(await http.post("/chat", json=UI, headers=key)).status_code for _ in range(3)]
            for name, key in (("ada", ADA), ("bob", BOB))
        }
        refused = await http.post("/chat", json=UI, headers=BOB)
    assert statuses == {"ada": [200, 200, 429], "bob": [200, 429, 429]}
    assert refused.text == "the API key has spent 0.352 today (UTC), and its limit is 0.352"


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"max_tokens_per_day": 0}, "max_tokens_per_day = 0: must be at least 1$"),
        ({"max_cost_per_day": 1.0}, "pass costs with the prices of the models"),
        ({"max_cost_per_day": math.inf, "costs": {"a": Cost(1, 1)}}, "max_cost_per_day = inf: must be above 0"),
        ({"costs": {"a": Cost(1, math.nan)}}, "output = nan of the model 'a': must be from 0 to 1,000,000"),
        ({"limits": {"eve": KeyLimits()}}, "limits has 'eve': keys has no key with this name"),
        ({"limits": {"ada": KeyLimits(max_per_minute=0)}}, "max_per_minute = 0: must be at least 1"),
    ],
)
def test_a_budget_that_is_out_of_bounds_is_refused(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        api_keys(KEYS, **options)


# What counts


def tokens(model: str, key: str = "ada") -> dict[str, float]:
    """What the metric has counted."""
    values = {
        kind: REGISTRY.get_sample_value("chat_tokens_total", {"model": model, "key": key, "kind": kind})
        for kind in ("input", "output", "cached", "reasoning")
    }
    return {kind: value for kind, value in values.items() if value is not None}


@pytest.mark.parametrize(
    ("name", "script", "counted"),
    [
        ("reported", [TextEvent("a"), USAGE], {"input": 70, "output": 30, "cached": 20, "reasoning": 10}),
        ("twice", [UsageEvent(5, 1), TextEvent("a"), UsageEvent(5, 2)], {"input": 5, "output": 2}),
        ("early", [UsageEvent(5, 2), TextEvent("a"), FinishEvent()], {"input": 5, "output": 2}),
        ("unreported", [TextEvent("a"), TextEvent("b")], {"output": 2}),
        ("failed", [UsageEvent(5, 1), TextEvent("a"), ValueError()], {"input": 5, "output": 2}),
        ("refused", [UsageEvent(5, 1), ChatError("no")], {"input": 5, "output": 1}),
        ("negative", [TextEvent("a"), UsageEvent(-5, -1)], {}),
        ("huge", [TextEvent("a"), UsageEvent(10**400, 10**12)], {"input": MAX_TOKENS, "output": MAX_TOKENS}),
    ],
)
async def test_what_a_response_costs_is_what_its_model_has_reported(
    name: str, script: list[Any], counted: dict[str, float]
) -> None:
    async with in_process(app_of({name: Scripted(script)}, [0.0])) as http:
        await http.post("/v1/chat/completions", json={**BODY, "model": name, "stream": True}, headers=ADA)
    assert tokens(name) == counted


async def test_failed_models_of_a_fallback_embeddings_and_requests_without_a_key_count() -> None:
    model = fallback(Scripted([UsageEvent(5, 1), ChatError("no")]), Scripted([TextEvent("a"), UsageEvent(7, 2)]))
    async with in_process(app_of({"chained": model}, [0.0])) as http:
        await http.post("/chat", json={**UI, "model": "chained"}, headers=ADA)
        await http.post("/v1/embeddings", json={"model": "vectors", "input": ["a", "b"]}, headers=ADA)
    assert tokens("chained") == {"input": 12, "output": 3}
    assert tokens("vectors") == {"input": 120}
    app = FastAPI()
    app.include_router(openai_router({"open": Scripted([TextEvent("a"), USAGE])}))
    async with in_process(app) as http:
        await http.post("/chat/completions", json={**BODY, "model": "open"})
    assert tokens("open", "-")["input"] == 70


async def test_the_title_of_a_conversation_counts_for_the_key_that_began_it() -> None:
    store = titled(SQLConversationStore(":memory:"), Scripted([TextEvent("Greeting"), UsageEvent(11, 3)]))
    app = FastAPI()
    router = ai_sdk_router(Scripted([TextEvent("hi")]), conversations=store)
    app.include_router(router, prefix="/chat", dependencies=[Depends(api_keys(KEYS))])
    async with in_process(app) as http:
        await http.post("/chat", json=UI, headers=ADA)
        await until(lambda: tokens("title") == {"input": 11, "output": 3})
    await store.aclose()


async def test_metrics_name_a_bounded_number_of_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usage, "MAX_PAIRS", 0)
    async with in_process(app_of({"crowded": Scripted([TextEvent("a"), USAGE])}, [0.0])) as http:
        await http.post("/chat", json={**UI, "model": "crowded"}, headers=ADA)
    assert (tokens("crowded"), tokens("crowded", "OTHER")["input"]) == ({}, 70)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/claude/messages", "/chat"])
async def test_a_client_that_leaves_early_pays_for_what_it_got(path: str) -> None:
    paused = PausedModel()

    async def model(request: Any) -> Any:
        yield UsageEvent(100, 0)
        async for event in paused.chat(request):
            yield event

    app = app_of(model, [0.0], max_tokens_per_day=101)
    async with asking(app) as http:
        body = UI if path == "/chat" else {**MESSAGE, "stream": True}
        async with http.stream("POST", path, json=body, headers=ADA) as response:
            await anext(response.aiter_lines())
        await until(lambda: paused.running == 0)
        assert (await http.post(path, json=body, headers=ADA)).status_code == 429
