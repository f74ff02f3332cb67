"""What every engine promises of calls, in each of its forms: an ingress calls two models, and both a shared one.

The app and its tests are the same for all. What one form cannot have is said where the forms are named.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import httpx
import pytest

from app_toolkit.declare.deployment import Bound
from tests.engines.chain import app as chain
from tests.engines.contract.ground import Ground, eventually
from tests.engines.contract.served import Load, Served, serving
from tests.engines.contract.visit import Visit, visiting
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.anyio


every_form = pytest.mark.parametrize(
    "served",
    ["embedded", "test client", "test client without lifespan", "ray"],
    indirect=True,
    scope="module",
)
"""For a few tests of each kind of call: a test client runs the same code, and cannot disconnect or speak WebSocket."""


@pytest.fixture(scope="module", params=["embedded", "processes", "ray"])
def served(request: pytest.FixtureRequest) -> Iterator[Served]:
    yield from serving(request, chain)


@pytest.fixture
async def visit(served: Served, tmp_path: Path) -> AsyncIterator[Visit]:
    async with visiting(served, tmp_path, "hold") as visit:
        yield visit


@every_form
async def test_a_call_goes_through_one_model_to_the_shared_one_and_back(visit: Visit) -> None:
    assert (await visit.get("/more/5")).json() == 16


@every_form
async def test_a_def_method_is_awaited_through_remote_and_called_directly_in_a_def_endpoint(visit: Visit) -> None:
    assert (await visit.get("/less/5")).json() == 4
    assert (await visit.get("/blocking/5")).json() == [16, 4, 2, 1, 0]


async def test_a_pending_result_can_be_an_argument(visit: Visit) -> None:
    assert (await visit.get("/passed/2")).json() == 21


@every_form
async def test_the_id_of_the_request_goes_with_its_calls(visit: Visit) -> None:
    assert (await visit.get("/tell", id="my-own-id")).json() == ["my-own-id", "my-own-id"]


async def test_a_value_passed_on_is_unpickled_only_at_its_user(visit: Visit) -> None:
    found = (await visit.get("/travels")).json()
    ingress, reader = found.pop("who")
    if ingress == reader:  # in one process it is the object itself
        assert set(map(tuple, found.values())) == {()}
    else:
        assert found == {"at once": [reader], "here": [ingress], "again": [ingress], "afterwards": [reader]}


async def test_the_error_of_a_failed_argument_is_raised_at_the_caller(visit: Visit) -> None:
    assert (await visit.get("/stays")).json() == ["no journey"]
    assert visit.ground.notes == []


async def test_replica_context_is_set_in_routes_methods_and_batches(visit: Visit) -> None:
    places = (await visit.get("/wheres")).json()
    assert [place["deployment"] for place in places] == [
        "front",
        *("right", "shared", "right"),
        *("batched", "batched", "batched"),
        "front",
    ]
    assert {place["application"] for place in places} == {visit.served.application}
    front = places[0]
    assert all((place["replica_id"] == front["replica_id"]) == (place["deployment"] == "front") for place in places)
    for other in ("/where-in-a-thread", "/where-batched"):
        assert (await visit.get(other)).json() == front


async def test_replica_context_is_set_in_a_websocket(visit: Visit) -> None:
    async with visit.talk("/where") as ws:
        assert json.loads(await ws.recv())["deployment"] == "front"


TRACE = {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "tracestate": "a=1,b=t@2"}
NO_TRACE = {"traceparent": "00-00000000000000000000000000000000-00f067aa0ba902b7-01", "tracestate": "a=1"}


@pytest.mark.parametrize(("sent", "expected"), [(TRACE, TRACE), (NO_TRACE, {}), ({}, {})])
async def test_a_valid_trace_of_the_request_goes_with_its_calls(
    visit: Visit, sent: dict[str, str], expected: dict[str, str]
) -> None:
    assert (await visit.client.get("/trace", headers=sent)).json() == [expected, expected, expected]
    came = dict((await visit.client.get("/fields", headers=sent)).json())
    assert {name: value for name, value in came.items() if "trace" in name} == sent, "and its own fields stay"


async def test_an_error_arrives_as_itself(visit: Visit) -> None:
    assert (await visit.get("/refuse")).json() == {"what": "not today", "code": 7}


@every_form
async def test_items_stream_through_both(visit: Visit) -> None:
    response = await visit.get("/numbers/300")
    assert response.text.split() == [str(3 * number + 1) for number in range(300)]


async def test_calls_that_yield_items_hold_no_slot_after_their_first_item(visit: Visit) -> None:
    received = visit.get("/news/8")
    request = 2  # of the ingress, a permit and a slot, which are not part of every load
    await visit.loaded(lambda load: load.streams == 8 and load.ongoing <= request)
    visit.ground.open("hold")
    assert (await received).json() == ["news"] * 8


async def test_calls_that_yield_items_beyond_the_limit_of_streams_keep_their_slots(visit: Visit) -> None:
    visit.ground.open("hold")
    refused = await visit.get("/news/10")
    assert (refused.status_code, refused.json()["error"]) == (503, "queue_timeout")
    assert refused.json()["detail"].endswith(
        "max_ongoing_requests is 2; 8 of 8 max_open_streams are open, and more streams hold slots"
    )


async def test_a_disconnect_stops_the_stream_at_its_source(visit: Visit) -> None:
    async with visit.client.stream("GET", "/endless") as stream:
        async for _ in stream.aiter_bytes():
            break
    await visit.noted("the stream was closed")


async def test_a_disconnect_cancels_the_whole_chain_of_calls(visit: Visit) -> None:
    call = visit.get("/hold/one")
    await visit.noted("one began")
    call.cancel()
    await visit.noted("one was cancelled")


async def test_a_post_whose_client_disconnects_while_it_waits_for_a_call_goes_on_to_its_end(visit: Visit) -> None:
    tries = [asyncio.create_task(visit.client.post(f"/order/{number}")) for number in range(3)]
    await visit.noted(*(f"{number} began" for number in range(3)))
    for each in tries:
        each.cancel()
    await asyncio.wait(tries)
    # A handler that is to be stopped is stopped within this time: the same client asks a route that says so.
    cancelled = asyncio.create_task(visit.client.post("/ask/other"))
    await visit.noted("other began")
    cancelled.cancel()
    await visit.noted("other was cancelled")
    assert not [note for note in visit.ground.notes if note.endswith("was cancelled") and note != "other was cancelled"]
    visit.ground.open("hold")
    await visit.noted(*(f"{number} was recorded" for number in range(3)))


async def test_calls_beyond_the_limit_of_a_model_wait_and_calls_beyond_its_queue_are_refused(visit: Visit) -> None:
    inside = [visit.get(f"/direct/{number}") for number in range(4)]
    await visit.noted(*(f"{number} began" for number in range(4)))
    waiting = [visit.get(f"/direct/{number}") for number in (4, 5)]
    await visit.loaded(lambda load: load.waiting == 2)

    refused = await visit.get("/direct/6", id="my-own-id")
    assert refused.status_code == 503
    assert int(refused.headers["retry-after"]) >= 1
    assert refused.json()["error"] == "queue_full"
    assert refused.json()["request_id"] == "my-own-id"

    visit.ground.open("hold")
    assert [(await task).json() for task in [*inside, *waiting]] == [str(number) for number in range(6)]


async def is_late(visit: Visit, name: str, ask: Callable[[float], Awaitable[httpx.Response]]) -> None:
    """A call is stopped at its deadline. If it had not begun by then, it is asked for again with more time."""
    for seconds in (0.1, 1.0, 10.0, 40.0):
        late = await ask(seconds)
        assert late.status_code == 504
        assert late.json()["error"] == "deadline_exceeded"
        if f"{name} began" in visit.ground.notes:
            break
    async with asyncio.timeout(PATIENCE_S):
        await eventually(lambda: 0 < visit.ground.notes.count(f"{name} began") == cancelled(visit, name))


def cancelled(visit: Visit, name: str) -> int:
    return visit.ground.notes.count(f"{name} was cancelled")


async def test_a_call_that_is_late_is_stopped_and_is_a_504(visit: Visit) -> None:
    await is_late(visit, "late", lambda seconds: visit.client.get("/late", params={"seconds": seconds}))


async def test_the_deadline_of_a_request_is_that_of_its_calls(visit: Visit) -> None:
    def ask(seconds: float) -> Awaitable[httpx.Response]:
        return visit.client.get("/hold/request", headers={"x-request-timeout-seconds": str(seconds)})

    await is_late(visit, "request", ask)


async def test_clients_that_drop_at_any_moment_leave_nothing_behind(visit: Visit) -> None:
    calls = [visit.get(f"/{way}/{way}{number}") for number in range(30) for way in ("hold", "direct")]
    async with asyncio.timeout(PATIENCE_S):
        await eventually(lambda: len(visit.ground.notes) == 4)  # whichever four the shared model has room for
    for number, call in enumerate(calls):
        await asyncio.sleep(number % 7 / 1_000)
        call.cancel()
    await visit.loaded(lambda load: load == Load(0, 0, 0))

    def who(what: str) -> set[str]:
        return {note.removesuffix(what) for note in visit.ground.notes if note.endswith(what)}

    async with asyncio.timeout(PATIENCE_S):
        await eventually(lambda: who(" began") == who(" was cancelled"))


@every_form
async def test_calls_of_many_requests_are_one_batch(visit: Visit) -> None:
    answers = await asyncio.gather(*(visit.get(f"/lengths/{'x' * number}") for number in range(1, 9)))
    lengths, sizes = zip(*(response.json() for response in answers), strict=True)
    assert lengths == tuple(range(1, 9))
    assert sizes == (8,) * 8, "a batch waits until it is full"


async def test_items_of_one_call_join_batches_of_other_calls_in_their_order(visit: Visit) -> None:
    many = visit.get(f"/all-lengths/{','.join('x' * number for number in range(1, 14))}")
    singles = [visit.get(f"/lengths/{'x' * number}") for number in range(14, 17)]
    found = (await many).json() + [(await each).json() for each in singles]
    assert found == [[number, 8] for number in range(1, 17)], "two full batches"


async def test_poisoned_item_fails_its_call_of_many_items_and_no_other_call(visit: Visit) -> None:
    calls = [visit.get("/all-roots/1,4,9"), visit.get("/all-roots/4,-1,-2")]
    assert [(await each).json() for each in calls] == [[1.0, 2.0, 3.0], "-1 has no root"]


async def test_an_item_s_error_is_its_caller_s_alone_and_def_batches_run_on_the_object_s_thread(visit: Visit) -> None:
    answers = await asyncio.gather(*(visit.get(f"/roots/{number}") for number in (4, -1, 9)))
    assert [response.json() for response in answers] == [2.0, "-1 has no root", 3.0]
    assert (await visit.get("/threads")).json() == 1


async def test_an_endpoint_over_lists_answers_each_request(visit: Visit) -> None:
    answers = await asyncio.gather(*(visit.get(f"/scaled/{number}") for number in range(8)))
    assert [response.json() for response in answers] == [3 * number for number in range(8)]


KEY = "x-serve-shard-key"


async def test_calls_of_a_split_with_one_key_go_to_one_member_in_every_process(visit: Visit) -> None:
    found = set()
    for number in range(20):
        field, key = {KEY: f"user-{number}"}, {"key": f"user-{number}"}
        (member,) = {
            *(await visit.client.get("/members/3", headers=field)).json(),
            *(await visit.client.get("/inner-members/3", headers=field)).json(),
            *(await visit.client.get("/members/3", params=key, headers={KEY: "another"})).json(),
            *(await visit.client.get("/inner-members/3", params=key)).json(),
        }
        found.add(member)
    assert found == {"left", "shared"}
    assert len(set((await visit.get("/members/200")).json())) == 2, "the key ends with its request"


async def test_weights_of_a_split_change_while_calls_run_and_no_call_fails(visit: Visit) -> None:
    failed: list[str] = []
    over = asyncio.Event()

    async def ask() -> None:
        while not over.is_set():
            response = await visit.client.get("/members/5")
            if response.status_code != 200:
                failed.append(response.text)

    async def only(member: str) -> None:
        async with asyncio.timeout(2):
            while {
                *(await visit.client.get("/members/20")).json(),
                *(await visit.client.get("/inner-members/20")).json(),
            } != {member}:
                pass

    clients = [asyncio.create_task(ask()) for _ in range(2)]
    try:
        for bound in (chain.shared, chain.left):
            visit.served.set_weights(chain.source, {bound: 3})
            await only(bound.name)
            assert {*(await visit.get("/members/100")).json()} == {bound.name}, "the other one has the weight 0"
    finally:
        over.set()
        await asyncio.gather(*clients)
        visit.served.set_weights(chain.source, {chain.left: 90, chain.shared: 10})
    assert failed == []


@pytest.mark.parametrize("member", [chain.left, chain.shared], ids=str)
async def test_client_that_leaves_closes_the_stream_of_the_member(visit: Visit, member: Bound[chain.Source]) -> None:
    visit.served.set_weights(chain.source, {member: 1})
    try:
        async with visit.client.stream("GET", "/endless-source") as stream:
            async for _ in stream.aiter_bytes():
                break
        await visit.noted("the stream was closed")
    finally:
        visit.served.set_weights(chain.source, {chain.left: 90, chain.shared: 10})


async def mirrored(visit: Visit) -> None:
    """Wait until callers use the new weights and mirrors of the split, which an instance publishes later."""
    ground = Ground(visit.ground.folder / "before")
    ground.folder.mkdir()
    ground.open("hold")
    served_by_mirror = 0
    async with asyncio.timeout(PATIENCE_S):
        while ground.notes.count("shared was called") == served_by_mirror:
            response = await visit.client.get("/noted-source", params={"ground": str(ground.folder)})
            served_by_mirror += response.status_code != 200


async def test_caller_notices_nothing_of_a_mirror_that_sleeps_and_raises(visit: Visit) -> None:
    visit.served.set_weights(chain.source, {chain.left: 1}, {chain.shared: 1})
    try:
        await mirrored(visit)
        async with asyncio.timeout(PATIENCE_S):
            while "copy began" not in visit.ground.notes:  # a copy is dropped while others use the mirror
                response = await visit.get("/noted-source")
                assert (response.status_code, response.json()) == (200, "left")
        visit.ground.open("hold")
        await visit.noted("copy ended")
    finally:
        visit.served.set_weights(chain.source, {chain.left: 90, chain.shared: 10}, {chain.shared: 0})
