"""Admission to a replica, and the order of reservations."""

import itertools
from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from app_toolkit.replica.admission.reservations import EARLY, MAX_CALLERS, RESERVATION_S, Admission

NAMES = "abcd"


def reservations(admission: Admission[str], ongoing: int, now: float = 0.0) -> str:
    """Everybody who is offered a slot as things are."""
    found = []
    while (caller := admission.next_reservation(ongoing, now)) is not None:
        found.append(caller)
    return "".join(found)


def test_unreserved_request_is_admitted_if_a_slot_is_free_and_no_caller_waits() -> None:
    admission: Admission[str] = Admission(slots=2)
    assert admission.admits_unreserved(1)
    assert not admission.admits_unreserved(2)
    admission.join("a")
    assert not admission.admits_unreserved(0)


def test_once_a_slot_came_free_one_more_is_offered_so_that_the_next_request_is_there_in_time() -> None:
    admission: Admission[str] = Admission(slots=1)
    for caller in "ab":
        admission.join(caller)
    assert reservations(admission, ongoing=1) == "", "nobody knows how long the handler takes"
    admission.freed()
    assert reservations(admission, ongoing=0) == "ab"
    assert admission.redeem("a", 0.0)
    assert admission.admits_reserved(0)
    assert admission.redeem("b", 0.0)
    assert not admission.admits_reserved(1)
    admission.wait("request", "b")
    assert admission.next_in(1) is None
    assert reservations(admission, ongoing=1) == ""
    assert admission.next_in(0) == "request"
    assert admission.next_in(0) is None
    assert not admission.admits_reserved(0), "the slot is for the one that waited"
    admission.forget("request")
    assert admission.reserved == 0


def test_caller_of_an_early_request_keeps_its_place_if_it_times_out() -> None:
    admission: Admission[str] = Admission(slots=1)
    for caller in "abc":
        admission.join(caller)
    admission.freed()
    assert reservations(admission, ongoing=0) == "ab"
    admission.redeem("a", 0.0)
    admission.redeem("b", 0.0)
    admission.wait("request", "b")
    admission.timed_out("request")
    assert reservations(admission, ongoing=1) == ""
    admission.freed()
    assert reservations(admission, ongoing=0) == "bc"


def test_caller_that_lets_a_reservation_expire_leaves_the_queue() -> None:
    admission: Admission[str] = Admission(slots=3)
    for caller in "ab":
        admission.join(caller)
    assert reservations(admission, ongoing=1, now=5.0) == "ab"
    assert admission.expires_at == 5.0 + RESERVATION_S
    assert admission.expire(5.0 + RESERVATION_S / 2) == []
    assert admission.redeem("b", 5.0)
    assert admission.expire(5.0 + RESERVATION_S) == ["a"]
    assert list(admission.callers) == ["b"]
    assert admission.expires_at is None


def test_reservation_that_is_on_its_way_when_its_caller_leaves_can_be_redeemed_until_it_expires() -> None:
    admission: Admission[str] = Admission(slots=2)
    for caller in "ab":
        admission.join(caller)
    assert reservations(admission, ongoing=0, now=5.0) == "ab"
    admission.leave("a")
    admission.leave("b")
    assert admission.reserved == 0, "it keeps no slot from others"
    assert admission.redeem("a", 5.0)
    assert not admission.redeem("a", 5.0)
    assert not admission.redeem("b", 5.0 + RESERVATION_S)


def test_wait_queue_is_bounded() -> None:
    admission: Admission[str] = Admission(slots=1)
    for number in range(MAX_CALLERS):
        assert admission.join(str(number))
    assert not admission.join("one more")
    assert admission.join("0"), "it stands there already"
    assert len(admission.callers) == MAX_CALLERS


class RandomAdmission(RuleBasedStateMachine):
    """Callers that stand, come, go, stop and never come, held against the plainest account of them."""

    def __init__(self) -> None:
        super().__init__()
        self.admission: Admission[int] = Admission(slots=2)
        self.tokens = itertools.count()
        self.now = 0.0
        self.ongoing = 0
        #: When the offers were made that each caller has heard and not claimed.
        self.heard: dict[str, list[float]] = {}
        #: When each of the reservations was made that a caller had when it left the queue.
        self.departed: dict[str, list[float]] = {name: [] for name in NAMES}
        #: How many requests redeemed one of these. They take slots beyond the reserved ones.
        self.late = 0
        self.on_deck: set[int] = set()
        self.entering: set[int] = set()
        #: How many offers each got since the other of a pair last got one, while both stood and nobody lost a place.
        self.ahead: Counter[tuple[str, str]] = Counter()

    def settle(self) -> None:
        """What the replica does after every event."""
        while (token := self.admission.next_in(self.ongoing)) is not None:
            self.on_deck.remove(token)
            self.entering.add(token)
        while (caller := self.admission.next_reservation(self.ongoing, self.now)) is not None:
            self.heard.setdefault(caller, []).append(self.now)
            for other in self.admission.callers:
                self.ahead[caller, other] += 1
                self.ahead[other, caller] = 0

    def left(self, caller: str) -> None:
        self.departed[caller] += self.heard.pop(caller, [])
        for other in NAMES:
            self.ahead[caller, other] = self.ahead[other, caller] = 0

    @rule(caller=st.sampled_from(NAMES))
    def someone_stands(self, caller: str) -> None:
        if caller not in self.admission.callers:
            self.left(caller)
        self.admission.join(caller)
        self.settle()

    @rule(caller=st.sampled_from(NAMES))
    def someone_leaves(self, caller: str) -> None:
        self.admission.leave(caller)
        self.left(caller)
        self.settle()

    @rule()
    def a_stranger_comes(self) -> None:
        if self.admission.admits_unreserved(self.ongoing):
            assert not self.admission.callers
            self.ongoing += 1

    @rule(caller=st.sampled_from(NAMES))
    def someone_claims_an_offer(self, caller: str) -> None:
        self.departed[caller] = [at for at in self.departed[caller] if self.now - at < RESERVATION_S]
        offers = self.heard.get(caller) or self.departed[caller]
        assert self.admission.redeem(caller, self.now) is bool(offers)
        if not offers:
            return self.a_stranger_comes()
        self.late += offers is self.departed[caller]
        del offers[0]
        if self.admission.admits_reserved(self.ongoing):
            self.ongoing += 1
        else:
            token = next(self.tokens)
            self.admission.wait(token, caller)
            self.on_deck.add(token)
        self.settle()

    @precondition(lambda self: self.entering)
    @rule(gone=st.booleans())
    def someone_from_the_deck_is_in(self, gone: bool) -> None:
        self.admission.forget(self.entering.pop())
        self.ongoing += not gone
        self.settle()

    @precondition(lambda self: self.ongoing)
    @rule()
    def someone_is_done(self) -> None:
        self.ongoing -= 1
        self.admission.freed()
        self.settle()

    @precondition(lambda self: self.on_deck)
    @rule(hung_up=st.booleans())
    def someone_on_deck_waits_no_more(self, hung_up: bool) -> None:
        token = self.on_deck.pop()
        if hung_up:
            self.admission.forget(token)
        else:
            self.admission.timed_out(token)
            self.ahead.clear()
        self.settle()

    @rule(seconds=st.sampled_from([0.3, 0.7, 1.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        for caller in self.admission.expire(self.now):
            assert self.heard[caller]
            self.left(caller)
        self.settle()

    @invariant()
    def no_more_are_inside_than_there_are_slots(self) -> None:
        assert self.ongoing + len(self.entering) <= self.admission.slots
        assert self.ongoing + self.admission.reserved <= self.admission.slots + EARLY + self.late

    @invariant()
    def no_slot_is_idle_while_somebody_stands_in_line(self) -> None:
        if self.admission.callers:
            assert self.ongoing + self.admission.reserved >= self.admission.slots
        if self.on_deck:
            assert self.ongoing + len(self.entering) == self.admission.slots

    @invariant()
    def nobody_gets_two_offers_while_another_gets_none(self) -> None:
        assert all(count <= 1 for (one, other), count in self.ahead.items() if one != other)

    @invariant()
    def promises_are_the_sizes_of_live_sets(self) -> None:
        assert self.admission.reserved == sum(map(len, self.heard.values())) + len(self.on_deck) + len(self.entering)
        assert {caller for caller, offers in self.heard.items() if offers} <= set(self.admission.callers)

    def teardown(self) -> None:
        for caller in NAMES:
            self.someone_leaves(caller)
        while self.ongoing or self.on_deck or self.entering:
            while self.entering:
                self.someone_from_the_deck_is_in(gone=False)
            if self.ongoing:
                self.someone_is_done()
        assert (self.admission.reserved, list(self.admission.callers)) == (0, [])
        assert self.admission.admits_unreserved(0)


RandomAdmission.TestCase.settings = settings(max_examples=30, stateful_step_count=40)
TestRandomAdmission = RandomAdmission.TestCase
