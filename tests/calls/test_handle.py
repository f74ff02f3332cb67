"""Calls and streams through handles: from the loop of the callee, from other loops and from threads."""

import asyncio
import copy
import gc
import pickle
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing
from typing import Any

import pytest

from app_toolkit import ConfigError, options, remote
from app_toolkit.calls import handle
from app_toolkit.errors import NoReplica
from app_toolkit.interfaces import Call
from app_toolkit.observability.context import READ_STREAMS, ReadStream
from tests.exchange.deployments import LANGUAGE, InProcess, Local, Writer, served_elsewhere, served_here
from tests.patience import PATIENCE_S, until

pytestmark = pytest.mark.anyio


@pytest.fixture
async def here() -> AsyncIterator[Local]:
    with served_here() as data_plane:
        yield data_plane


@pytest.fixture
def elsewhere() -> Iterator[Local]:
    with served_elsewhere() as data_plane:
        yield data_plane


@pytest.fixture(params=["here", "elsewhere"])
async def data_plane(request: pytest.FixtureRequest) -> AsyncIterator[Local]:
    """Handles are used in the test's own loop, which is the callee's, or is not."""
    with served_here() if request.param == "here" else served_elsewhere() as data_plane:
        yield data_plane


def bound(data_plane: Local, model: str = "small") -> tuple[Writer, Writer, InProcess]:
    """A handle, the object behind it, and what brings its calls there."""
    deployment = Writer.bind(model)
    caller = data_plane.client_of(deployment)
    behind: Any = caller.object
    return deployment.handle, behind, caller


@pytest.fixture
async def _nothing_is_logged(data_plane: Local) -> AsyncIterator[None]:
    """Neither loop has an exception that nobody has retrieved."""
    logged: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: logged.append(context))
    data_plane.loop.call_soon_threadsafe(
        data_plane.loop.set_exception_handler, lambda _, context: logged.append(context)
    )
    yield
    gc.collect()
    await asyncio.sleep(0)
    assert logged == []


# Ordinary calls


async def test_a_method_is_awaited_as_if_the_object_were_here(data_plane: Local) -> None:
    model, _, caller = bound(data_plane, "tiny")
    assert await model.write("ab", times=2) == "tiny: abab"
    assert (caller.calls[0].method, caller.calls[0].args, caller.calls[0].kwargs) == ("write", ("ab",), {"times": 2})
    assert caller.ongoing == 0


async def test_an_exception_arrives_as_itself(data_plane: Local) -> None:
    model, _, _ = bound(data_plane)
    with pytest.raises(LookupError, match="no such word"):
        await model.fail()


async def test_a_stream_is_iterated(data_plane: Local) -> None:
    model, behind, caller = bound(data_plane)
    assert [number async for number in model.count(3)] == [0, 1, 2]
    assert behind.log[-1] == "count ended"
    await until(lambda: caller.ongoing == 0)


async def test_a_broken_stream_gives_its_first_items(data_plane: Local) -> None:
    model, _, _ = bound(data_plane)
    stream = model.break_off()
    assert await anext(stream) == 1
    with pytest.raises(LookupError, match="no second word"):
        await anext(stream)


async def test_a_stream_that_is_left_early_is_closed_at_the_callee(data_plane: Local) -> None:
    model, behind, caller = bound(data_plane)
    async with aclosing(model.count(1_000)) as numbers:  # type: ignore[type-var]
        async for number in numbers:
            if number == 2:
                break
    assert behind.log[-1] == "count ended"
    await until(lambda: caller.ongoing == 0)


async def test_a_cancelled_call_cancels_the_method(data_plane: Local) -> None:
    model, behind, caller = bound(data_plane)
    task = asyncio.create_task(model.wait())
    await until(behind.started.is_set)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(behind.ended.is_set)
    await until(lambda: caller.ongoing == 0)


async def test_a_method_called_in_one_process_sees_the_context_of_its_caller(data_plane: Local) -> None:
    model, _, _ = bound(data_plane)
    LANGUAGE.set("Latin")
    assert await model.language() == "Latin"
    assert await remote(model.language) == "Latin"


async def test_in_the_callees_own_loop_a_call_makes_no_task(here: Local) -> None:
    model, behind, _ = bound(here)
    before = asyncio.all_tasks()
    made: list[set[asyncio.Task[Any]]] = []

    async def looking() -> str:
        made.append(asyncio.all_tasks() - before)
        return "seen"

    behind.write = looking  # type: ignore[method-assign, assignment]
    assert await model.write() == "seen"  # type: ignore[call-arg]
    assert [number async for number in model.count(2)] == [0, 1]
    assert made == [set()]


async def test_from_another_loop_at_most_one_item_is_made_ahead(elsewhere: Local) -> None:
    model, behind, _ = bound(elsewhere)
    async with aclosing(model.count(1_000)) as numbers:  # type: ignore[type-var]
        assert await anext(numbers) == 0
        await until(lambda: "made 1" in behind.log)
        await model.write("a call that comes behind what is made")
        assert behind.log == ["made 0", "made 1"]


async def test_a_coroutine_of_a_handle_runs_in_whichever_loop_awaits_it(elsewhere: Local) -> None:
    model, _, _ = bound(elsewhere)
    coroutine = await asyncio.to_thread(model.write, "x")
    assert await coroutine == "small: x"


# Without an event loop


def test_def_methods_block_if_no_loop_runs(elsewhere: Local) -> None:
    model, _, _ = bound(elsewhere)
    assert model.score("four") == 4
    assert list(model.spell("abc")) == ["a", "b", "c"]


def test_a_generator_that_is_left_early_is_closed_at_the_callee(elsewhere: Local) -> None:
    model, behind, _ = bound(elsewhere)
    letters = model.spell("abc")
    assert next(letters) == "a"
    letters.close()  # type: ignore[attr-defined]
    assert behind.ended.wait(PATIENCE_S)


def test_a_script_uses_asyncio_run_as_often_as_it_likes(elsewhere: Local) -> None:
    model, _, _ = bound(elsewhere)

    async def count() -> list[int]:
        return [number async for number in model.count(2)]

    assert [asyncio.run(count()) for _ in range(2)] == [[0, 1], [0, 1]]
    assert asyncio.run(model.write("x")) == "small: x"


def test_every_kind_of_method_is_waited_for_through_remote(elsewhere: Local) -> None:
    model, _, _ = bound(elsewhere)
    assert remote(model.write, "x").result() == "small: x"
    assert remote(model.score, "four").result(timeout_s=PATIENCE_S) == 4
    assert list(remote(model.count, 3)) == [0, 1, 2]
    assert list(remote(model.spell, "ab")) == ["a", "b"]


async def test_def_methods_in_a_loop_are_refused_and_the_way_is_named(data_plane: Local) -> None:
    model, _, caller = bound(data_plane)
    with pytest.raises(TypeError, match=r"Writer.score is a `def` method, .*: await remote\(model.score, \.\.\.\)"):
        model.score("four")
    with pytest.raises(TypeError, match=r"async for \.\.\. in remote\(model.spell, \.\.\.\)"):
        model.spell("abc")
    assert caller.calls == []


# Responses


async def test_remote_answers_for_every_kind_of_method(data_plane: Local) -> None:
    model, _, _ = bound(data_plane)
    assert await remote(model.write, "x", times=2) == "small: xx"
    assert await remote(model.score, "four") == 4
    assert [number async for number in remote(model.count, 2)] == [0, 1]
    assert [letter async for letter in remote(model.spell, "ab")] == ["a", "b"]


async def test_a_call_future_starts_at_once_and_can_be_awaited_twice(data_plane: Local) -> None:
    model, behind, _ = bound(data_plane)
    response = remote(model.wait)
    assert repr(response) == "<CallFuture of <Writer.wait of writer>: under way>"
    await until(behind.started.is_set)
    response.cancel()
    for _ in range(2):
        with pytest.raises(asyncio.CancelledError):
            await response
    response.cancel()  # nothing is left to cancel
    await until(behind.ended.is_set)

    answered = remote(model.write, "x")
    assert await answered == await answered == "small: x"
    assert repr(answered) == "<CallFuture of <Writer.write of writer>: done>"


async def test_a_call_future_as_an_argument_is_resolved_before_the_call(data_plane: Local) -> None:
    model, _, caller = bound(data_plane)
    first = remote(model.write, "a")
    assert await model.write(first.later()) == "small: small: a"
    assert await remote(model.write, first.later()) == "small: small: a"
    assert await remote(model.write, "b", times=remote(model.score, "two").later()) == "small: bbb"
    assert [number async for number in model.count(remote(model.score, "two").later())] == [0, 1, 2]
    assert not any(isinstance(value, handle.CallFuture) for call in caller.calls for value in call.args)


async def test_a_failed_argument_fails_the_call_before_it_is_sent(data_plane: Local) -> None:
    model, _, caller = bound(data_plane)
    with pytest.raises(LookupError, match="no such word"):
        await model.write(remote(model.fail).later())  # type: ignore[arg-type]
    assert [call.method for call in caller.calls] == ["fail"]


async def test_a_call_future_without_references_is_cancelled(data_plane: Local) -> None:
    model, behind, caller = bound(data_plane)
    response = remote(model.wait)
    await until(behind.started.is_set)
    del response
    await until(behind.ended.is_set)
    await until(lambda: caller.ongoing == 0)


@pytest.mark.usefixtures("_nothing_is_logged")
async def test_an_unread_failure_is_not_logged(data_plane: Local) -> None:
    model, _, caller = bound(data_plane)
    responses = [remote(model.fail), remote(model.break_off_at_once)]
    await until(lambda: len(caller.calls) == 2)
    del responses
    await until(lambda: caller.ongoing == 0)


@pytest.mark.usefixtures("_nothing_is_logged")
async def test_an_exception_of_a_cancelled_method_is_not_logged(data_plane: Local) -> None:
    model, behind, caller = bound(data_plane)
    response = remote(model.wait_badly)
    await until(behind.started.is_set)
    response.cancel()
    with pytest.raises((asyncio.CancelledError, LookupError)):
        await response
    del response
    await until(lambda: caller.ongoing == 0)


async def test_a_stream_that_is_dropped_or_cancelled_is_closed(data_plane: Local) -> None:
    model, behind, caller = bound(data_plane)
    stream = remote(model.count, 1_000)
    assert await anext(stream) == 0
    del stream
    await until(behind.ended.is_set)

    behind.ended.clear()
    other = remote(model.count, 1_000)
    assert repr(other) == "<Stream of <Writer.count of writer>>"
    assert await anext(other) == 0
    other.cancel()
    with pytest.raises(asyncio.CancelledError):
        async for _ in other:
            pass
    assert behind.ended.is_set()
    await until(lambda: caller.ongoing == 0)


async def test_a_stream_that_has_ended_stays_so(data_plane: Local) -> None:
    model, _, _ = bound(data_plane)
    stream = remote(model.count, 1)
    assert [number async for number in stream] == [0]
    assert [number async for number in stream] == []
    stream.cancel()
    await stream.aclose()


def test_a_call_future_ends_with_its_event_loop(elsewhere: Local) -> None:
    model, behind, _ = bound(elsewhere)
    kept = []

    async def leave() -> None:
        kept.append(remote(model.wait))
        await until(behind.started.is_set)

    asyncio.run(leave())
    assert behind.ended.wait(PATIENCE_S)


async def test_a_call_future_of_a_loop_can_be_waited_for_in_a_thread(data_plane: Local) -> None:
    model, _, _ = bound(data_plane)
    response = remote(model.write, "x")
    assert await asyncio.to_thread(response.result) == "small: x"


async def test_a_call_future_of_a_thread_can_be_awaited_in_a_loop(data_plane: Local) -> None:
    model, _, _ = bound(data_plane)
    response = await asyncio.to_thread(remote, model.write, "x")
    assert await response == "small: x"


def test_a_call_future_of_one_loop_can_be_awaited_in_another(elsewhere: Local) -> None:
    model, _, _ = bound(elsewhere)
    made: list[handle.CallFuture[str]] = []
    ready, over = threading.Event(), threading.Event()

    async def make() -> None:
        made.append(remote(model.write, "x"))
        ready.set()
        await asyncio.to_thread(over.wait)

    async def take() -> str:
        return await made[0]

    thread = threading.Thread(target=asyncio.run, args=(make(),))
    thread.start()
    ready.wait()
    try:
        assert asyncio.run(take()) == "small: x"
    finally:
        over.set()
        thread.join()


async def test_a_blocking_wait_in_a_loop_is_an_error(data_plane: Local) -> None:
    model, _, _ = bound(data_plane)
    response, stream = remote(model.write, "x"), remote(model.count, 1)
    with pytest.raises(RuntimeError, match="would block the event loop that runs here: await response"):
        response.result()
    with pytest.raises(RuntimeError, match="would block the event loop that runs here: async for"):
        next(stream)
    assert await response == "small: x"
    assert [number async for number in stream] == [0]


def test_a_late_result_is_a_timeout_and_the_call_continues(elsewhere: Local) -> None:
    model, behind, _ = bound(elsewhere)
    response = remote(model.wait)
    with pytest.raises(TimeoutError, match=r"<Writer.wait of writer> gave no result within 0.01 s"):
        response.result(timeout_s=0.01)
    assert behind.started.wait(PATIENCE_S)
    assert not behind.ended.is_set()
    response.cancel()
    assert behind.ended.wait(PATIENCE_S)


def test_remote_takes_a_method_of_a_handle_alone() -> None:
    with pytest.raises(TypeError, match=r"remote\(\) takes a method of a handle, as in .*, not <bound method"):
        remote(Writer().write, "x")


# Options


async def test_options_go_with_each_call_and_add_up(data_plane: Local) -> None:
    model, _, caller = bound(data_plane)
    hasty = options(options(model, timeout_s=2), retry="all")
    await hasty.write("x")
    assert [number async for number in hasty.count(0)] == []
    await remote(options(hasty, timeout_s=None).score, "four")
    await model.write("x")
    assert [(call.timeout_s, call.retry) for call in caller.calls] == [
        (2, "all"),
        (2, "all"),
        (None, "all"),
        (None, None),
    ]


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ({"timeout_s": 0}, "timeout_s = 0: input should be greater than 0"),
        ({"retry": "never"}, "retry = 'never': input should be 'idempotent', 'all' or 'none'"),
        ({"session_id": "k"}, r"options\(\) has no option 'session_id'"),
        ({"timeout": 1}, r"options\(\) has no option 'timeout'; did you mean 'timeout_s'\?"),
    ],
)
def test_an_invalid_option_is_an_error_of_one_sentence(said: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=f"^{sentence}$"):
        options(Writer.bind().handle, **said)


def test_options_are_of_a_handle() -> None:
    with pytest.raises(TypeError, match=r"options\(model, \.\.\.\) takes a handle, not <tests.exchange.deployments"):
        options(Writer(), timeout_s=2)
    with pytest.raises(TypeError, match="takes a handle, not None"):
        handle.deployment_of(None)


# What a handle is


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("_secret", "Writer._secret is private; callers can call public methods only"),
        ("__wrapped__", "Writer.__wrapped__ is private; callers can call public methods only"),
        ("style", "Writer.style is not a method; a handle has only methods"),
        ("wrote", r"Writer has no method 'wrote'; did you mean write\?"),
        ("options", "Writer.options is a class method, which needs no replica: call it on the class"),
        ("paint_over", "Writer has no method 'paint_over'"),
    ],
)
def test_names_that_cannot_be_called_are_no_attributes(name: str, sentence: str) -> None:
    with pytest.raises(AttributeError, match=f"^{sentence}$"):
        getattr(Writer.bind().handle, name)


def test_a_handle_has_a_repr_and_cannot_be_changed_or_pickled() -> None:
    deployment = Writer.bind()
    model = deployment.handle
    assert repr(model) == "<Handle of writer: Writer>"
    assert repr(model.write) == "<Writer.write of writer>"
    assert handle.deployment_of(model) is deployment
    with pytest.raises(AttributeError, match="cannot set 'style' on a handle"):
        model.style = "bold"
    for way in (pickle.dumps, copy.deepcopy):
        with pytest.raises(TypeError, match="the handle of 'writer' cannot be pickled"):
            way(model)


# The data plane of a process


async def test_a_stream_that_its_request_closes_is_not_closed_twice(
    here: Local, monkeypatch: pytest.MonkeyPatch
) -> None:
    closing, may_close = asyncio.Event(), asyncio.Event()

    async def stream(_: Call) -> AsyncGenerator[int, None]:
        try:
            yield 1
        finally:
            closing.set()
            await may_close.wait()

    model, _, caller = bound(here)
    monkeypatch.setattr(caller, "stream", stream)
    readings: set[ReadStream] = set()
    READ_STREAMS.set(readings)
    items: Any = model.count(2)
    assert await anext(items) == 1
    for reading in readings:
        reading.leave()
    await closing.wait()
    await items.aclose()  # as the garbage collector does
    may_close.set()


def test_calls_are_refused_after_the_engine_has_ended() -> None:
    with served_elsewhere() as data_plane:
        model, behind, _ = bound(data_plane)
        held = remote(model.wait)
        assert behind.started.wait(PATIENCE_S)
        held.cancel()
    handle.use(data_plane)
    try:
        for call in (lambda: model.score("x"), lambda: remote(model.count, 1)):
            with pytest.raises(NoReplica, match="the engine of this process has shut down"):
                call()
        held.cancel()
    finally:
        handle.use(None)
