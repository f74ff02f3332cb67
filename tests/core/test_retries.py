"""Whether a lost request may be tried again: in random worlds, against a record of all that happened."""

from random import Random

import pytest

from app_toolkit.core.recent import WINDOW_S
from app_toolkit.core.retries import FLOOR_PER_S, ONE_DEATH_S, SHARE, RetryBudget


class World:
    """Requests come at some rate, and replicas die with some of them. Everything that happens is kept."""

    def __init__(self, seed):
        self.rng = Random(seed)
        self.now = self.rng.uniform(0, 100_000)
        self.budget = RetryBudget()
        self.asked, self.paid, self.granted, self.denied = [], [], 0, 0
        self.last_death = {}

    def run(self, steps=3_000):
        rng = self.rng
        per_s = rng.choice((2, 50, 1_000, 5_000))
        loss = rng.choice((0.0, 0.01, 0.3, 1.0))
        replicas = [f"r{number}" for number in range(rng.choice((1, 3, 500)))]
        for _ in range(steps):
            self.now += rng.expovariate(per_s)
            if rng.random() < 0.001:
                self.now += rng.uniform(0, 30)
            self.asked.append(self.now)
            self.budget.asked(self.now)
            if rng.random() < loss:
                self.lose(rng.choice(replicas))

    def lose(self, replica):
        paid = self.last_death.get(replica)
        free = paid is not None and self.now - paid < ONE_DEATH_S
        before = len(self.lately(self.paid))
        most = max(SHARE * len(self.lately(self.asked)), FLOOR_PER_S * WINDOW_S)
        granted = self.budget.take(replica, self.now)
        assert granted is (free or before < most)
        if not granted:
            self.denied += 1
            return
        self.granted += 1
        if not free:
            self.last_death[replica] = self.now
            self.paid.append(self.now)

    def lately(self, times):
        return [at for at in times[-20_000:] if int(at) > int(self.now) - WINDOW_S]


@pytest.mark.parametrize("seed", range(24))
def test_in_a_random_world_it_pays_for_deaths_and_never_for_more_than_it_has(seed):
    world = World(seed)
    world.run(steps=1_000)
    bound = FLOOR_PER_S * WINDOW_S + SHARE * len(world.asked)
    for start in world.paid:
        assert sum(start <= at < start + WINDOW_S - 1 for at in world.paid) <= bound


def test_the_worlds_see_both_answers():
    worlds = [World(seed) for seed in range(24)]
    for world in worlds:
        world.run(steps=1_000)
    assert sum(world.granted for world in worlds) > 1_000
    assert sum(world.denied for world in worlds) > 1_000


def test_ten_deaths_a_second_are_always_made_good():
    budget = RetryBudget()
    for number in range(1_000):
        assert budget.take(f"r{number}", 50.0 + number / FLOOR_PER_S)


def test_of_many_requests_a_fifth_may_be_tried_again():
    budget = RetryBudget()
    for _ in range(2_000):
        budget.asked(7.0)
    assert sum(budget.take(f"r{number}", 7.5) for number in range(1_000)) == 400


def test_all_that_one_death_takes_along_costs_what_one_request_does():
    budget = RetryBudget()
    assert all(budget.take("victim", 3.0 + number / 1_000) for number in range(900))
    assert sum(budget.take(f"r{number}", 4.0) for number in range(1_000)) == FLOOR_PER_S * WINDOW_S - 1


def test_what_was_spent_is_there_again_after_the_window():
    budget = RetryBudget()
    for number in range(FLOOR_PER_S * WINDOW_S):
        assert budget.take(f"r{number}", 0.5)
    assert not budget.take("another", 9.9)
    assert budget.take("another", 10.0)


def test_the_deaths_that_are_remembered_are_those_of_a_moment():
    budget = RetryBudget()
    for number in range(5_000):
        budget.take(f"r{number}", number / FLOOR_PER_S)
    assert len(budget._deaths) <= FLOOR_PER_S * ONE_DEATH_S + 1
