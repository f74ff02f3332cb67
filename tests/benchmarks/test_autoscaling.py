"""The load of the autoscaling benchmark, its figures and its page."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from benchmarks import autoscaling
from benchmarks.autoscaling import (
    BOUNDS,
    DOCS,
    NAME,
    OURS,
    OURS_NO_DELAYS,
    PLOT,
    RESULTS,
    Answer,
    Look,
    Walk,
    document,
    drawing,
    figures,
    looks,
    serving,
    start_up,
    timeline,
    walk,
)
from benchmarks.report import judge, with_document

QUICK = {"BEFORE_S": 0.2, "AFTER_S": 0.2, "STEP_S": 5.0, "EMPTY_S": 5.0, "REST_S": 0.1, "AGAIN_S": 0.01, "CLIENTS": 4}


class Ground:
    """A server with two replicas, which records its replicas. The second one responds if there are three clients."""

    def __init__(self, folder: Path) -> None:
        self.file = (folder / autoscaling.step.REPLICAS).open("w", buffering=1)
        self.inside = self.most = self.asked = 0
        self.fails = 0
        """The number of requests that fail next."""

    def tell(self, starting: int, running: int) -> None:
        self.file.write(json.dumps({"at": time.time(), "starting": starting, "running": running}) + "\n")

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.inside += 1
        self.most = max(self.most, self.inside)
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                self.asked += 1
                if self.fails:
                    self.fails -= 1
                    writer.write(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n")
                    return
                replica = b"22" if self.inside > 2 and self.asked % 2 else b"11"
                await asyncio.sleep(0.005)
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n" + replica)
        except (asyncio.IncompleteReadError, ConnectionResetError):
            pass
        finally:
            self.inside -= 1
            writer.close()
            if not self.inside:
                self.tell(0, 0)


@asynccontextmanager
async def ground(folder: Path) -> AsyncIterator[tuple[str, Ground]]:
    there = Ground(folder)
    there.tell(0, 1)
    async with await asyncio.start_server(there.serve, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/", there
    there.file.close()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in QUICK.items():
        monkeypatch.setattr(autoscaling, name, value)


@pytest.mark.anyio
@pytest.mark.usefixtures("quick")
async def test_the_load_has_one_client_then_many_then_one_then_none_and_one_more_request(tmp_path: Path) -> None:
    async with ground(tmp_path) as (url, there):
        walked = await walk(url, tmp_path, 2, to_zero=True)
        assert there.most == 4
        assert len(walked.answers) == there.asked
    assert {each.replica for each in walked.answers if each.at < walked.stepped_at} == {11}
    assert list(serving(walked.answers, walked.stepped_at)) == [11, 22]
    assert walked.asked_at is not None
    assert walked.stepped_at < walked.left_at < walked.empty_at < walked.asked_at < walked.answers[-1].at
    assert sum(each.at > walked.empty_at + 0.01 for each in walked.answers) == 1
    found = figures(walked, looks(tmp_path), 2)
    assert found["failed"] == 0
    assert 0 <= found["all_s"] < QUICK["STEP_S"]
    assert abs(found["gone_s"]) < QUICK["EMPTY_S"], "this server has no replica as soon as it has no client"


def answers(*each: tuple[float, int | None]) -> list[Answer]:
    return [Answer(at, 0.1, replica) for at, replica in each]


STEP = Walk(
    answers=[
        *answers((9.0, 1), (10.2, 1), (13.5, 2), (13.6, 1), (15.0, 3), (16.0, None), (17.0, 1)),
        Answer(34.0, 4.0, 4),
    ],
    stepped_at=10.0,
    left_at=18.0,
    empty_at=20.0,
    asked_at=30.0,
)
TOLD = [
    Look(1.0, 0, 1),
    Look(11.0, 1, 1),
    Look(12.0, 2, 1),
    Look(13.25, 1, 2),
    Look(14.5, 0, 3),
    Look(22.0, 0, 1),
    Look(23.0, 0, 0),
    Look(30.25, 1, 0),
    Look(33.75, 0, 1),
]


def test_a_start_up_lasts_from_the_first_request_until_one_more_replica_runs() -> None:
    assert start_up(TOLD, 10.0) == (11.0, 13.25)
    assert start_up(TOLD, 30.0) == (30.25, 33.75)
    assert start_up(TOLD[:3], 10.0) is None
    assert start_up(TOLD, 40.0) is None


def test_times_count_from_the_step_and_from_the_first_request_to_zero_replicas() -> None:
    assert figures(STEP, TOLD, 3) == {
        "failed": 1,
        "first_ordered_s": 1.0,
        "first_start_s": 2.25,
        "first_s": 3.5,
        "first_beyond_s": 1.25,
        "all_s": 5.0,
        "p50_ms": 100.0,
        "p99_ms": 100.0,
        "gone_s": 3.0,
        "woken_ordered_s": 0.25,
        "woken_start_s": 3.5,
        "woken_s": 4.0,
        "woken_beyond_s": 0.5,
    }


def test_the_timeline_has_seconds_before_the_step_and_none_after_the_clients_stopped() -> None:
    assert timeline(STEP) == [
        (-1, 1, 1, 100.0),
        (0, 1, 1, 100.0),
        (3, 2, 2, 100.0),
        (5, 1, 1, 100.0),
        (6, 0, 1, 100.0),
        (7, 1, 1, 100.0),
    ]


def results(**of_ours: float) -> dict[str, Any]:
    found = {name: [value] for name, value in of_ours.items()}
    return {"run": {"rounds": 1}, "figures": {OURS: {NAME: found}, OURS_NO_DELAYS: {NAME: found}}}


def test_each_bound_holds_or_not() -> None:
    good = judge(results(first_beyond_s=2.0, woken_beyond_s=0.5), BOUNDS)
    assert [verdict.holds for verdict in good] == [True, True, True]
    bad = judge(results(first_beyond_s=2.01, woken_beyond_s=0.51), BOUNDS)
    assert [verdict.holds for verdict in bad] == [False, False, False]
    assert [verdict.holds for verdict in judge(results(), BOUNDS)] == [None, None, None]


def test_the_page_and_its_plot_are_generated_from_the_results() -> None:
    known = json.loads(RESULTS.read_text())
    assert DOCS.read_text() == with_document(DOCS.read_text(), document(known))
    assert PLOT.read_text() == drawing(known)
