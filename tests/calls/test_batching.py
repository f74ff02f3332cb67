"""Batches of calls with one item each."""

import asyncio
import gc
import pickle
import random
import threading
import traceback
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import cloudpickle
import pytest
from fastapi import HTTPException

from app_toolkit import ConfigError, batch, call_many
from app_toolkit.calls import batching
from app_toolkit.calls.batching import AHEAD, batch_request_ids, forget, is_raw, override
from app_toolkit.errors import BatchError
from app_toolkit.observability.context import REQUEST_ID
from tests.patience import PATIENCE_S, until

pytestmark = pytest.mark.anyio

FULL_ONLY_S = 60.0
"""No test takes so long: a batch that waits for this closes because it is full."""


@pytest.fixture(autouse=True)
def _nobody_waits_and_nothing_runs() -> Iterator[None]:
    yield
    left = [each.buffer for each in batching.BATCHES.values()]  # those that a kept traceback keeps
    assert not [buffer for buffer in left if buffer.items or buffer.running]


def started(*calls: Coroutine[Any, Any, Any]) -> list[asyncio.Task[Any]]:
    return [asyncio.ensure_future(call) for call in calls]


class Rig:
    """A batch method that writes down what it was called with, and ends when it is told to."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.ended: list[list[str]] = []
        self.cancelled: list[list[str]] = []
        self.go = asyncio.Event()

    @batch(max_batch_size=2, batch_wait_timeout_s=FULL_ONLY_S)
    async def upper(self, texts: list[str]) -> list[str]:
        self.batches.append(texts)
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled.append(texts)
            raise
        self.ended.append(texts)
        return [text.upper() for text in texts]


# Who is in a batch


async def test_each_caller_gets_its_own_entry_of_the_result() -> None:
    rig = Rig()
    rig.go.set()
    assert await asyncio.gather(*(rig.upper(text) for text in "abcd")) == ["A", "B", "C", "D"]
    assert rig.batches == [["a", "b"], ["c", "d"]]


async def test_limits_can_be_set_while_items_come_and_those_of_a_method_are_the_classes() -> None:
    class Own(Rig):
        @batch(max_batch_size=2, batch_wait_timeout_s=FULL_ONLY_S)
        async def upper(self, texts: list[str]) -> list[str]:
            self.batches.append(texts)
            return texts

    rig = Own()
    rig.upper.batch.max_batch_size = 4
    assert Own().upper.batch is Own.upper.batch
    assert Own.upper.batch.max_batch_size == 4
    assert Rig.upper.batch.max_batch_size == 2
    await asyncio.gather(*(rig.upper(text) for text in "abcd"))
    assert rig.batches == [["a", "b", "c", "d"]]
    with pytest.raises(ConfigError, match="max_batch_size = 0"):
        rig.upper.batch.max_batch_size = 0


async def test_an_override_of_limits_applies_to_one_object_at_once() -> None:
    rig, other = Rig(), Rig()
    override(rig, {"upper": {"max_batch_size": 3, "batch_wait_timeout_s": FULL_ONLY_S}})
    try:
        rig.go.set()
        waiting = started(rig.upper("a"), rig.upper("b"))
        await asyncio.sleep(0)
        assert rig.batches == []
        override(rig, {"upper": {"max_batch_size": 2}})
        assert await asyncio.gather(*waiting) == ["A", "B"], "it is full now"
        other.go.set()
        await asyncio.gather(*(other.upper(text) for text in "abcd"))
        assert other.batches == [["a", "b"], ["c", "d"]]
    finally:
        forget(rig)
    await asyncio.gather(*(rig.upper(text) for text in "cd"))
    assert rig.batches == [["a", "b"], ["c", "d"]]


async def test_a_shorter_wait_applies_to_items_that_already_wait() -> None:
    @batch(batch_wait_timeout_s=FULL_ONLY_S)
    async def same(items: list[int]) -> list[int]:
        return items

    (first,) = started(same(1))
    await asyncio.sleep(0)
    same.batch.batch_wait_timeout_s = 0.1
    async with asyncio.timeout(PATIENCE_S):
        assert await same(2) == 2
    assert await first == 1


# Whose buffer it is


@dataclass
class Equal:
    """All of its objects are equal, and none can be hashed."""

    name: str = ""

    @batch(max_batch_size=2, batch_wait_timeout_s=0)
    async def who(self, items: list[int]) -> list[tuple[int, int]]:
        return [(id(self), len(items)) for _ in items]


class Slotted:
    __slots__ = ()

    @batch(max_batch_size=2, batch_wait_timeout_s=0)
    async def who(self, items: list[int]) -> list[tuple[int, int]]:
        return [(id(self), len(items)) for _ in items]


@pytest.mark.parametrize("kind", [Equal, Slotted])
async def test_each_instance_has_batches_of_its_own(kind: type[Equal] | type[Slotted]) -> None:
    one, other = kind(), kind()
    assert await asyncio.gather(one.who(1), other.who(1)) == [(id(one), 1), (id(other), 1)]


async def test_no_instance_is_kept() -> None:
    rig = Rig()
    rig.go.set()
    gone = weakref.ref(rig)
    await asyncio.gather(rig.upper("a"), rig.upper("b"))
    await asyncio.sleep(0)  # the batch ends after its callers have their answers
    del rig
    gc.collect()
    assert gone() is None, "not by the clock of the first item either, which had not run out"


def test_each_event_loop_has_batches_of_its_own() -> None:
    all_wait = threading.Barrier(3)
    seen: list[list[int]] = []

    @batch(max_batch_size=2, batch_wait_timeout_s=FULL_ONLY_S)
    async def loops(items: list[int]) -> list[int]:
        seen.append(items)
        return items

    async def two(number: int) -> list[int]:
        first = asyncio.ensure_future(loops(number))
        await asyncio.sleep(0)
        all_wait.wait(PATIENCE_S)  # each of three loops has an item
        return [await loops(number), await first]

    answers: list[list[int]] = []
    threads = [threading.Thread(target=lambda n=n: answers.append(asyncio.run(two(n)))) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers) == sorted(seen) == [[0, 0], [1, 1], [2, 2]]


async def test_a_class_method_and_a_static_method_have_batches() -> None:
    class Model:
        @classmethod
        @batch(batch_wait_timeout_s=0)
        async def named(cls, items: list[int]) -> list[str]:
            return [f"{cls.__name__} {item}" for item in items]

        @staticmethod
        @batch(batch_wait_timeout_s=0)
        async def plain(items: list[int]) -> list[int]:
            return items

    assert await Model.named(1) == "Model 1"
    assert await Model().plain(2) == 2


async def test_a_class_of_a_script_or_a_notebook_travels_by_value() -> None:
    script: dict[str, Any] = {"__name__": "__main__"}
    exec(
        "from app_toolkit import batch\n"
        "class Model:\n"
        "    @batch(max_batch_size=2, batch_wait_timeout_s=60)\n"
        "    async def double(self, items: list[int]) -> list[int]:\n"
        "        return [2 * item for item in items]\n",
        script,
    )
    script["Model"].double.batch.max_batch_size = 3
    packed = cloudpickle.dumps(script.pop("Model"))
    gc.collect()  # otherwise this process would find the class that it has packed
    received = pickle.loads(packed)
    assert await asyncio.gather(*map(received().double, range(3))) == [0, 2, 4]


# Callers that leave


async def test_a_cancelled_item_is_not_in_the_batch() -> None:
    rig = Rig()
    rig.go.set()
    (gone,) = started(rig.upper("gone"))
    await asyncio.sleep(0)
    gone.cancel()
    await asyncio.wait([gone])
    assert gone.cancelled()
    assert await _both(rig) == ["A", "B"]
    assert rig.batches == [["a", "b"]]


async def test_an_item_cancelled_between_close_and_start_is_not_in_the_batch() -> None:
    rig = Rig()
    rig.go.set()
    gone, stays = started(rig.upper("gone"), rig.upper("stays"))
    await asyncio.sleep(0)  # both have come, and their batch is closed
    assert rig.batches == []
    gone.cancel()
    assert await stays == "STAYS"
    assert rig.batches == [["stays"]]


async def test_items_of_one_call_fill_batches_and_keep_their_order() -> None:
    rig = Rig()
    rig.go.set()
    many = asyncio.ensure_future(call_many(rig.upper, ["a", "b", "c"]))
    await until(lambda: len(rig.batches) == 1)
    assert await rig.upper("d") == "D"
    assert await many == ["A", "B", "C"]
    assert rig.batches == [["a", "b"], ["c", "d"]]
    assert await call_many(rig.upper, []) == []


async def test_function_with_two_lists_takes_a_list_for_each() -> None:
    @batch(max_batch_size=2, batch_wait_timeout_s=0.001)
    async def joined(texts: list[str], numbers: list[int]) -> list[str]:
        return [f"{text}{number}" for text, number in zip(texts, numbers, strict=True)]

    assert await call_many(joined, ["a", "b", "c"], [1, 2, 3]) == ["a1", "b2", "c3"]
    with pytest.raises(BatchError, match=r"lists of \[1, 2\] items"):
        await call_many(joined, ["a", "b"], [1])


async def test_call_of_many_items_raises_the_first_error_and_drops_the_items_that_wait() -> None:
    began: list[list[int]] = []

    @batch(max_batch_size=2)
    async def checked(numbers: list[int]) -> list[int | Exception]:
        began.append(numbers)
        return [number if number else ValueError("zero") for number in numbers]

    with pytest.raises(ValueError, match="zero"):
        await call_many(checked, [1, 0, 2, 3, 4, 5])
    assert began[0] == [1, 0]
    assert len(began) < 3


async def test_cancelled_call_of_many_items_waits_for_its_batch_and_starts_no_other() -> None:
    rig = Rig()
    many = asyncio.ensure_future(call_many(rig.upper, ["a", "b", "c", "d"]))
    await until(lambda: bool(rig.batches))
    many.cancel()
    await asyncio.wait([many])
    assert many.cancelled()
    assert (rig.batches, rig.cancelled) == ([["a", "b"]], [["a", "b"]])


async def test_call_has_at_most_10_000_items() -> None:
    rig = Rig()
    with pytest.raises(BatchError, match="10,001 items: one call has at most 10,000"):
        await call_many(rig.upper, ["a"] * 10_001)
    assert rig.batches == []


async def test_function_without_batches_or_with_streams_cannot_be_called_with_many_items() -> None:
    @batch()
    async def steps(numbers: list[int]) -> AsyncIterator[list[int]]:
        yield numbers

    functions: list[Any] = [steps, _both]
    for function in functions:
        with pytest.raises(TypeError, match="call_many"):
            await call_many(function, [1])


async def _both(rig: Rig) -> list[str]:
    return await asyncio.gather(rig.upper("a"), rig.upper("b"))


async def test_a_caller_cancelled_during_its_batch_waits_for_the_end() -> None:
    rig = Rig()
    gone, stays = started(rig.upper("gone"), rig.upper("stays"))
    await until(lambda: bool(rig.batches))
    for _ in range(3):  # however often
        gone.cancel()
        await asyncio.sleep(0)
    assert not gone.done()
    rig.go.set()
    assert await stays == "STAYS"
    await asyncio.wait([gone])
    assert gone.cancelled()
    assert (rig.ended, rig.cancelled) == ([["gone", "stays"]], [])


async def test_a_batch_is_cancelled_if_all_its_callers_are() -> None:
    rig = Rig()
    tasks = started(rig.upper("a"), rig.upper("b"))
    await until(lambda: bool(rig.batches))
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    assert all(task.cancelled() for task in tasks)
    assert rig.cancelled == [["a", "b"]]
    rig.go.set()
    assert await _both(rig) == ["A", "B"], "the next batch runs"


async def test_callers_that_leave_at_random_leave_nothing_behind() -> None:
    rng = random.Random(7)
    running = most = 0
    served: list[int] = []

    @batch(max_batch_size=4, batch_wait_timeout_s=0.002, max_concurrent_batches=2)
    async def work(items: list[int]) -> list[int]:
        nonlocal running, most
        running += 1
        most = max(most, running)
        try:
            for _ in range(rng.randrange(5)):
                await asyncio.sleep(0)
            served.extend(items)
            return items
        finally:
            running -= 1

    async def client(number: int) -> None:
        for _ in range(rng.randrange(40)):
            await asyncio.sleep(0)
        assert await work(number) == number

    tasks = started(*(client(number) for number in range(400)))
    while not all(task.done() for task in tasks):
        rng.choice(tasks).cancel()
        await asyncio.sleep(0)
    answered = {number for number, task in enumerate(tasks) if not task.cancelled() and task.result() is None}
    assert answered <= set(served)
    assert len(served) == len(set(served))
    assert 0 < len(answered) < 400
    assert (running, most) == (0, 2)


# Errors


async def test_an_exception_in_the_result_is_the_response_of_its_item() -> None:
    missing = HTTPException(status_code=404, detail="no such item", headers={"x-a": "b"})

    @batch(max_batch_size=3, batch_wait_timeout_s=FULL_ONLY_S)
    async def find(items: list[int]) -> list[int | HTTPException]:
        return [item if item > 0 else missing for item in items]

    one, two, three = await asyncio.gather(find(1), find(-1), find(-2), return_exceptions=True)
    assert one == 1
    for error in (two, three):
        assert type(error) is HTTPException
        assert error is not missing
        assert (error.status_code, error.detail, error.headers) == (404, "no such item", {"x-a": "b"})
    assert two is not three


class Picky(Exception):
    """Cannot be made from its own `args`."""

    def __init__(self, code: int, *, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code


class Stubborn(Exception):
    """Cannot be made at all but by its own constructor."""

    def __new__(cls, *, text: str) -> "Stubborn":
        return super().__new__(cls, text)

    def __init__(self, *, text: str) -> None:
        super().__init__(text)


def undecodable() -> Exception:
    try:
        b"\xff".decode()
    except UnicodeDecodeError as error:
        return error
    raise AssertionError


@pytest.mark.parametrize(
    "error",
    [
        ValueError("bad", 3),
        FileNotFoundError(2, "No such file", "x.txt"),
        undecodable(),
        Picky(7, text="seven"),
        ExceptionGroup("several", [ValueError("one")]),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_a_batch_that_raises_fails_each_of_its_callers_with_a_copy_of_its_own(error: Exception) -> None:
    failing = True

    @batch(max_batch_size=2, batch_wait_timeout_s=FULL_ONLY_S)
    async def fail(items: list[int]) -> list[int]:
        if failing:
            error.add_note("in the batch")
            raise error
        return items

    one, two = await asyncio.gather(fail(1), fail(2), return_exceptions=True)
    for each in (one, two):
        assert isinstance(each, Exception)
        assert each is not error
        assert (type(each), str(each), each.args) == (type(error), str(error), error.args)
        assert {**vars(each), "__notes__": None} == {**vars(error), "__notes__": None}
        assert each.__notes__ == ["in the batch"]
        assert "in fail" in "".join(traceback.format_exception(each)), "one sees where"
    one.add_note("mine")
    assert two.__notes__ == ["in the batch"]
    failing = False
    assert await asyncio.gather(fail(3), fail(4)) == [3, 4]


async def test_an_error_that_cannot_be_copied_is_named() -> None:
    @batch(batch_wait_timeout_s=0)
    async def fail(items: list[int]) -> list[int]:
        raise Stubborn(text="no copies")

    with pytest.raises(BatchError, match=r"fail failed with Stubborn: no copies") as failed:
        await fail(1)
    assert isinstance(failed.value.__cause__, Stubborn)


async def test_the_traceback_of_a_shared_error_does_not_grow_with_its_callers() -> None:
    shared = ValueError("always the same")

    @batch(batch_wait_timeout_s=0)
    async def fail(items: list[int]) -> list[ValueError]:
        return [shared for _ in items]

    depths = []
    for number in range(5):
        with pytest.raises(ValueError, match="always") as failed:
            await fail(number)
        depths.append(len(traceback.extract_tb(failed.value.__traceback__)))
    assert len(set(depths)) == 1
    assert shared.__traceback__ is None


class Weakly(Exception):
    pass


@pytest.mark.parametrize("raised", [False, True])
async def test_an_error_that_was_handled_is_gone_without_the_collector(raised: bool) -> None:
    @batch(batch_wait_timeout_s=0)
    async def fail(items: list[int]) -> list[Exception]:
        if raised:
            raise Weakly
        return [Weakly() for _ in items]

    gc.disable()
    try:
        try:
            await fail(1)
        except Weakly as error:
            gone = weakref.ref(error)
        await asyncio.sleep(0)
        assert gone() is None
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("result", "said"),
    [
        ([1], "received 2 items and returned 1 results"),
        ([1, 2, 3], "received 2 items and returned 3 results"),
        (None, "returned NoneType for 2 items instead of a list"),
        ({1: 1, 2: 2}, "returned dict for 2 items instead of a list"),
    ],
)
async def test_a_result_that_is_no_list_with_an_entry_for_each_item_fails_exactly_those(result: Any, said: str) -> None:
    results = [result, [5, 6]]

    @batch(max_batch_size=2, batch_wait_timeout_s=FULL_ONLY_S)
    async def wrong(items: list[int]) -> list[int]:
        return results.pop(0)

    answers = await asyncio.gather(*(wrong(number) for number in range(4)), return_exceptions=True)
    for error in answers[:2]:
        assert isinstance(error, BatchError)
        assert said in str(error)
    assert answers[2:] == [5, 6]


@pytest.mark.parametrize(
    ("size", "kind", "message"),
    [
        ("-1", BatchError, "returned -1: it must be a whole number of 0 or more"),
        ("None", BatchError, "returned None: it must be a whole number of 0 or more"),
        ("x", NameError, "name 'x' is not defined"),
    ],
)
async def test_an_invalid_size_fails_only_its_caller(size: str, kind: type[Exception], message: str) -> None:
    @batch(max_batch_size=2, batch_wait_timeout_s=FULL_ONLY_S, size_fn=eval)
    async def same(items: list[str]) -> list[str]:
        return items

    one, two, three = await asyncio.gather(same("1"), same(size), same("1"), return_exceptions=True)
    assert (one, three) == ("1", "1")
    assert isinstance(two, kind)
    assert message in str(two)


async def test_a_batch_that_cancels_itself_is_an_error_and_no_cancellation_of_its_callers() -> None:
    @batch(batch_wait_timeout_s=0)
    async def give_up(items: list[int]) -> list[int]:
        raise asyncio.CancelledError

    with pytest.raises(BatchError, match="give_up was cancelled"):
        await give_up(1)


# Where it runs

WHO: ContextVar[str] = ContextVar("who", default="nobody")


@pytest.mark.parametrize("in_thread", [False, True])
async def test_a_batch_runs_outside_of_request_contexts_and_has_the_request_ids(in_thread: bool) -> None:
    def look(items: list[str]) -> list[Any]:
        return [(WHO.get(), REQUEST_ID.get(), batch_request_ids(), threading.current_thread().name) for _ in items]

    async def look_async(items: list[str]) -> list[Any]:
        return look(items)

    limits: dict[str, Any] = {"max_batch_size": 2, "batch_wait_timeout_s": FULL_ONLY_S}
    looked = batch(**limits)(look if in_thread else look_async)

    async def request(number: int) -> Any:
        WHO.set(f"caller {number}")
        REQUEST_ID.set(f"req-{number}")
        return await looked("x")

    answers = await asyncio.gather(*(asyncio.create_task(request(number)) for number in (1, 2)))
    for who, request_id, ids, thread in answers:
        assert (who, request_id, ids) == ("nobody", None, ("req-1", "req-2"))
        assert (thread != threading.current_thread().name) is in_thread
    assert batch_request_ids() == ()


# Streams


class Streams:
    def __init__(self) -> None:
        self.ended = 0
        self.yielded = 0
        self.go = asyncio.Event()
        self.go.set()

    @batch(max_batch_size=2, batch_wait_timeout_s=FULL_ONLY_S)
    async def count(self, limits: list[int]) -> AsyncIterator[list[int | None]]:
        try:
            for number in range(max(limits)):
                await self.go.wait()
                self.yielded += 1
                yield [number if number < limit else None for limit in limits]
        finally:
            self.ended += 1


async def all_of(stream: AsyncIterator[Any]) -> list[Any]:
    return [each async for each in stream]


async def test_each_caller_of_a_stream_gets_its_own_entries_and_none_is_skipped() -> None:
    streams = Streams()
    assert await asyncio.gather(all_of(streams.count(2)), all_of(streams.count(4))) == [[0, 1], [0, 1, 2, 3]]
    assert streams.ended == 1


async def test_an_exception_in_a_step_ends_the_stream_of_its_item_alone() -> None:
    @batch(max_batch_size=2, batch_wait_timeout_s=FULL_ONLY_S)
    async def steps(items: list[int]) -> AsyncIterator[list[Any]]:
        yield ["a", "b"]
        yield [ValueError("enough"), "c"]
        yield ["unheard", "d"]

    async def gathered(item: int, into: list[Any]) -> None:
        async for each in steps(item):
            into.append(each)

    one: list[Any] = []
    two: list[Any] = []
    failed, done = await asyncio.gather(gathered(1, one), gathered(2, two), return_exceptions=True)
    assert isinstance(failed, ValueError)
    assert (one, done, two) == (["a"], None, ["b", "c", "d"])


async def test_a_stream_whose_items_all_have_failed_is_closed() -> None:
    events = []

    @batch(max_batch_size=2, batch_wait_timeout_s=FULL_ONLY_S)
    async def steps(items: list[int]) -> AsyncIterator[list[Any]]:
        try:
            yield [ValueError(item) for item in items]
            events.append("went on")
        finally:
            events.append("closed")

    answers = await asyncio.gather(all_of(steps(1)), all_of(steps(2)), return_exceptions=True)
    assert [str(error) for error in answers] == ["1", "2"]
    await until(lambda: bool(events))
    assert events == ["closed"]


@pytest.mark.parametrize(
    ("step", "said"),
    [
        ([1], "received 2 items and returned 1 results"),
        (7, "returned int for 2 items"),
        (RuntimeError("broke"), "broke"),
    ],
)
async def test_a_broken_stream_fails_each_caller_after_its_items(step: Any, said: str) -> None:
    @batch(max_batch_size=2, batch_wait_timeout_s=FULL_ONLY_S)
    async def steps(items: list[int]) -> AsyncIterator[list[Any]]:
        yield items
        if isinstance(step, Exception):
            raise step
        yield step

    async def broken(item: int) -> list[Any]:
        stream = steps(item)
        got = [await anext(stream)]
        with pytest.raises((BatchError, RuntimeError), match=said):
            await anext(stream)
        return got

    assert await asyncio.gather(broken(1), broken(2)) == [[1], [2]]


async def test_a_stream_continues_until_its_last_caller_leaves() -> None:
    streams = Streams()
    one, two = streams.count(10 * AHEAD), streams.count(10 * AHEAD)
    await asyncio.gather(anext(one), anext(two))
    (leaving,) = started(one.aclose())
    assert [await anext(two) for _ in range(2 * AHEAD)] == list(range(1, 2 * AHEAD + 1))
    assert not leaving.done(), "its item is still computed"
    assert streams.ended == 0
    await two.aclose()
    await leaving
    assert streams.ended == 1


async def test_a_stream_is_never_further_ahead_than_its_slowest_caller_allows() -> None:
    streams = Streams()
    slow, quick = streams.count(3 * AHEAD), streams.count(3 * AHEAD)
    await asyncio.gather(anext(slow), anext(quick))
    (rest,) = started(all_of(quick))
    for _ in range(20 * AHEAD):
        await asyncio.sleep(0)
    assert streams.yielded == AHEAD + 1
    assert not rest.done()
    assert await all_of(slow) == list(range(1, 3 * AHEAD))
    assert await rest == list(range(1, 3 * AHEAD))


async def test_a_cancelled_reader_leaves_the_stream() -> None:
    streams = Streams()
    streams.go.clear()
    tasks = started(all_of(streams.count(3)), all_of(streams.count(3)))
    for _ in range(5):
        await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    assert all(task.cancelled() for task in tasks)
    assert streams.ended == 1


# What is decorated


def generator(items: list[int]) -> Iterator[list[int]]:
    yield items


@pytest.mark.parametrize("what", [generator, Rig, len, Rig()])
def test_an_object_that_cannot_be_batched_is_refused(what: Any) -> None:
    with pytest.raises(ConfigError, match="must be an `async def` or a `def` function"):
        batch()(what)


def test_a_function_registered_before_its_decorator_is_found() -> None:
    registered: list[Callable[..., Any]] = []

    def register(function: Any) -> Any:
        registered.append(function)
        return function

    @register
    @batch()
    async def right(items: list[int]) -> list[int]:
        return items

    @batch()
    @register
    async def wrong(items: list[int]) -> list[int]:
        return items

    assert [is_raw(function) for function in registered] == [False, True]
    assert not is_raw(wrong)
    assert not is_raw(len)
