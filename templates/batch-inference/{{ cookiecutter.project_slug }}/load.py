"""A load test: sends texts to `/predict` and shows the rate, the latency and the size of the batches."""

import argparse
import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

import httpx2

TEXTS = ("What a wonderful film!", "The food was awful.", "It works, thank you.", "I regret that I came.")


@dataclass(frozen=True)
class Summary:
    requests: int
    per_second: float
    p50_ms: float
    p99_ms: float
    mean_batch: float

    def __str__(self) -> str:
        return (
            f"{self.requests} requests, {self.per_second:,.0f}/s, p50 {self.p50_ms:.1f} ms, "
            f"p99 {self.p99_ms:.1f} ms, {self.mean_batch:.1f} texts per batch"
        )


def summarise(seconds: Sequence[float], batch_sizes: Sequence[int], total_s: float) -> Summary:
    """Summarise the duration of each request in seconds, and the size of the batch that it was in."""
    ordered = sorted(seconds)
    count = len(ordered)
    batches = sum(1 / size for size in batch_sizes)  # each text is one part of its batch
    return Summary(
        requests=count,
        per_second=count / total_s,
        p50_ms=ordered[count // 2] * 1_000,
        p99_ms=ordered[min(count - 1, count * 99 // 100)] * 1_000,
        mean_batch=count / batches,
    )


async def measure(client: httpx2.AsyncClient, requests: int, concurrency: int) -> Summary:
    """Send requests, at most `concurrency` at the same time. Raises the error of the first one that fails."""
    seconds: list[float] = []
    batch_sizes: list[int] = []
    numbers = iter(range(requests))

    async def send_in_turn() -> None:
        for number in numbers:
            begin = time.perf_counter()
            response = await client.post("/predict", json={"text": TEXTS[number % len(TEXTS)]})
            response.raise_for_status()
            seconds.append(time.perf_counter() - begin)
            batch_sizes.append(response.json()["batch_size"])

    begin = time.perf_counter()
    async with asyncio.TaskGroup() as senders:
        for _ in range(concurrency):
            senders.create_task(send_in_turn())
    return summarise(seconds, batch_sizes, time.perf_counter() - begin)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="default: %(default)s")
    parser.add_argument("--requests", type=int, default=2_000, help="default: %(default)s")
    parser.add_argument("--concurrency", type=int, default=64, help="requests at the same time, default: %(default)s")
    options = parser.parse_args()
    limits = httpx2.Limits(max_connections=options.concurrency)
    async with httpx2.AsyncClient(base_url=options.url, timeout=30, limits=limits) as client:
        print(await measure(client, options.requests, options.concurrency))


if __name__ == "__main__":
    asyncio.run(main())
