"""Several controllers at once, killed, stopped anywhere and woken up: the epoch decides, and nothing is done twice."""

import asyncio
import itertools
import random

import pytest

from app_toolkit.control.controller import GAP_S, Controller
from app_toolkit.control.operations import Delete, Deploy
from app_toolkit.control.reconcile import Kill, Start
from app_toolkit.control.replica_state import Drained, Exited, Found, Placed, ProbePassed, Started
from app_toolkit.errors import StaleEpoch
from tests.control.harness import CHAT, SHOP, application, harness
from tests.simulated import SimulatedLauncher, World

pytestmark = pytest.mark.anyio


class Everybody(World):
    """Whoever attends hears everything, also of what another one has ordered."""

    def __init__(self, clock):
        super().__init__(clock)
        self.listening = []

    def attend(self, emit, epoch):
        self.listening.append(emit)
        super().attend(lambda event: [emit(event) for emit in tuple(self.listening)], epoch)


class Process:
    """All that is between one controller and the world: while it is stopped, nothing comes through."""

    def __init__(self, harness):
        self._harness = harness
        self._going = asyncio.Event()
        self._going.set()
        self._stop_in = None
        self.stopped_at = None
        """When; None: it runs."""
        self.stopped_at_a_step = False
        """It was asking the store something."""
        self.launcher = Launcher(harness.world, self)
        self.controller = Controller(self, self.launcher, self)

    async def begins(self):
        await self.controller.start()
        self.run = asyncio.create_task(self.controller.run())
        self._harness.tasks.append(self.run)
        return self

    async def dies(self):
        self.run.cancel()
        await asyncio.gather(self.run, return_exceptions=True)

    def stops(self):
        self._going.clear()
        self.stopped_at = self._harness.clock.now()

    def stops_in(self, steps):
        self._stop_in = steps

    def wakes(self):
        """Gives for how long it was stopped."""
        self._stop_in = None
        slept = 0.0 if self.stopped_at is None else self._harness.clock.now() - self.stopped_at
        self.stopped_at = None
        self._going.set()
        return slept

    async def through(self):
        await self._going.wait()

    # Its clock

    def now(self):
        return self._harness.clock.now()

    async def sleep(self, seconds):
        await self._harness.clock.sleep(seconds)
        await self.through()

    # Its store

    async def _asks(self, question, *arguments):
        await self.through()
        result = await getattr(self._harness.store, question)(*arguments)
        if self._stop_in is not None:
            self._stop_in -= 1
            if self._stop_in < 0:
                self._stop_in = None
                self.stopped_at_a_step = True
                self.stops()
                await self.through()
        return result

    async def get(self, key):
        return await self._asks("get", key)

    async def compare_and_set(self, key, expected, value):
        await self._asks("compare_and_set", key, expected, value)

    async def delete(self, key):
        await self._asks("delete", key)

    async def keys(self, prefix):
        return await self._asks("keys", prefix)


class Launcher(SimulatedLauncher):
    """Keeps what happens until its process goes on."""

    def __init__(self, world, process):
        super().__init__(world)
        self._process = process
        self._tasks = set()

    def listen(self, emit, epoch):
        self._heard = emit
        super().listen(self._hear, epoch)

    def _hear(self, event):
        task = asyncio.create_task(self._tell(event))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _tell(self, event):
        await self._process.through()
        self._heard(event)

    async def aclose(self):
        self._world.listening.remove(self._hear)
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@pytest.mark.parametrize("seed", range(4))
async def test_in_any_world_only_the_last_controller_starts_or_ends_anything(seed):
    rng, cpus = random.Random(seed), itertools.count(1)
    async with harness(caller=False) as h:
        await h.controller_dies()
        h.world = Everybody(h.clock)
        last = await Process(h).begins()
        spec = application()
        await last.controller.change(Deploy(spec))
        others, woken, asked = [], [], []
        for _ in range(40):
            match rng.choice(
                ["apply", "crash", "stop", "stop", "stop at a step", "wake", "wake", "kill", "late", "none"]
            ):
                case "apply":
                    spec = application(chat=rng.randint(1, 3), cpus=float(next(cpus)))
                    asked.append(asyncio.create_task(last.controller.change(Deploy(spec))))
                    await h.clock.advance(0.1)
                    assert asked[-1].done() or last.stopped_at is not None
                case "crash" if h.world.processes:
                    h.world.crash(rng.choice(sorted(h.world.processes)))
                case "stop":
                    last.stops()
                case "stop at a step":
                    last.stops_in(rng.randrange(8))
                    await h.clock.advance(rng.choice([1.0, 6.0]))
                case "wake" if others:
                    one = others.pop(rng.randrange(len(others)))
                    woken.append((one, h.clock.now(), one.wakes()))
                case "kill":
                    await last.dies()
                case "late":
                    h.world.late = {
                        rng.choice([Started, Placed, Exited, Drained, Found, ProbePassed]): rng.uniform(0, 4)
                    }
            if last.stopped_at is not None or last.run.done():
                if last.stopped_at is not None:
                    others.append(last)
                await h.clock.advance(rng.choice([0.0, 3.0, 30.0]))
                last = await Process(h).begins()
            h.controller = last.controller
            await h.clock.advance(rng.choice([0.1, 1.0, 8.0]))
            assert not last.controller.replaced
            for one, at, slept in woken:
                assert one.run.done() or slept <= GAP_S or h.clock.now() <= at + 1.0
        last.wakes()
        h.world.late = {}
        await last.controller.change(Deploy(spec))
        woken += [(one, h.clock.now(), one.wakes()) for one in others]
        await h.clock.advance(90.0)
        results = await asyncio.gather(*asked, return_exceptions=True)
        assert all(isinstance(each, (int, StaleEpoch)) for each in results)
        await last.dies()
        last = await Process(h).begins()  # which knows only what the others left in the store
        await h.clock.advance(120.0)
        h.controller = last.controller
        assert h.word() == "healthy"
        deployed = {each.config.name: each.config for each in spec.deployments}
        for replica_set, config in ((SHOP, deployed["shop"]), (CHAT, deployed["chat"])):
            there = [h.world.processes[id].order.resources.num_cpus for id in h.world.of(replica_set)]
            assert there == [config.resources.num_cpus] * config.num_replicas
        ids = [action.replica for action in h.performed(Start)]
        assert len(ids) == len(set(ids))
        if not any(one.stopped_at_a_step and slept <= GAP_S for one, _, slept in woken):
            assert not [action for action in h.world.refused if isinstance(action, (Start, Kill))]
        for one, _, _ in woken:
            await one.dies()
        await last.dies()
        await h.world.aclose()


def packed(number):
    """A version with files, and what is packed of these."""
    hash = f"{number:064x}"
    return application(chat=number).model_copy(update={"artifact": hash}), {hash: b"%d" % number}


async def applied(process, number):
    spec, code = packed(number)
    return await process.controller.change(Deploy(spec, code=code))


@pytest.mark.slow
@pytest.mark.parametrize("doing", ["apply", "apply on", "delete"])
async def test_interrupted_command_changes_nothing_of_the_next_controller(doing):
    """`apply on`: where a version falls away, and its files with it."""
    for steps in itertools.count():
        async with harness(caller=False) as h:
            await h.controller_dies()
            h.world = Everybody(h.clock)
            old = await Process(h).begins()
            for number in (1, 2, 3) if doing == "apply on" else (1,):
                await applied(old, number)
                await h.clock.advance(30.0)
            old.stops_in(steps)
            if doing == "delete":
                asked = asyncio.create_task(old.controller.change(Delete("shop")))
            else:
                asked = asyncio.create_task(applied(old, 4))
            await h.clock.advance(0.01)
            if old.stopped_at is None:
                assert steps > 5
                await old.dies()
                await h.world.aclose()
                return
            new = await Process(h).begins()
            known = new.controller.desired.applications.get("shop")
            await applied(new, 5)
            old.wakes()
            [result] = await asyncio.gather(asked, return_exceptions=True)
            if not isinstance(result, StaleEpoch):  # then it was done before there was another one
                assert (known and known.main.spec) == (None if doing == "delete" else packed(4)[0])
            await h.clock.advance(30.0)
            await new.dies()
            further = await Process(h).begins()
            [kept] = further.controller.desired.applications.values()
            assert kept.main.spec == packed(5)[0]
            named = {f"code/{hash}" for spec in kept.specs for hash in spec.packed}
            assert named <= set(await h.store.keys("code/"))
            await h.clock.advance(60.0)
            h.controller = further.controller
            assert h.word() == "healthy"
            for one in (old, further):
                await one.dies()
            await h.world.aclose()
