"""The numbers and rules of docs/requests.md are those of the code."""

from itertools import groupby
from random import Random

import anyio
import pytest
from anyio.to_thread import current_default_thread_limiter

from app_toolkit import Deployment, DeploymentConfig
from app_toolkit.calls.batching import batch
from app_toolkit.config.models import ClassConfig
from app_toolkit.errors import ConfigError
from app_toolkit.exchange.placement.least_loaded import RUN, pick

from .pages import page

TEXT = " ".join(page("docs/requests.md").text.split())
INGRESS, CLASS = DeploymentConfig(name="any"), ClassConfig(name="any")


def test_the_bounds_of_the_page_are_the_defaults() -> None:
    assert (
        f"`max_queued_requests` ({INGRESS.max_queued_requests:,}), `max_queue_wait_s` ({INGRESS.max_queue_wait_s:g} s)"
        in TEXT
    )
    both = f"{INGRESS.max_ongoing_requests} for an ingress, {CLASS.max_ongoing_requests} for a class"
    assert f"`max_ongoing_requests` ({both})" in TEXT
    assert f"`max_open_websockets` ({INGRESS.max_open_websockets:,})" in TEXT
    assert f"methods the `sync_threads` of their object ({CLASS.sync_threads})" in TEXT
    assert INGRESS.request_timeout_s is None
    assert "`request_timeout_s`, which is not set by default" in TEXT


def test_def_endpoints_share_as_many_threads_as_the_page_says() -> None:
    async def threads() -> float:
        return current_default_thread_limiter().total_tokens

    assert f"`def` endpoints share the {anyio.run(threads):g} threads of their process" in TEXT


def test_a_replica_serves_as_many_requests_in_a_row_as_the_page_says() -> None:
    replicas, served, last, run = ["one", "two"], list[str](), None, 0
    for _ in range(3 * RUN):
        chosen = pick(replicas, lambda replica: 0, Random(1), last, moves=run >= RUN)
        assert chosen is not None
        run = run + 1 if chosen == last else 1
        served.append(chosen)
        last = chosen
    assert [len(list(group)) for _, group in groupby(served)] == [RUN] * 3
    assert f"after {RUN} requests in a row" in TEXT


def test_a_class_has_room_for_its_full_batches_and_less_is_refused() -> None:
    class Encoder(Deployment):
        @batch(max_batch_size=32)
        async def embed(self, texts: list[str]) -> list[str]:
            return texts

    assert Encoder.bind().config.max_ongoing_requests == 32
    with pytest.raises(ConfigError, match="its batches are full with 32 at a time"):
        Encoder.options(max_ongoing_requests=31)
