from hypothesis import given
from hypothesis import strategies as st

from app_toolkit.transport.lengths import LONG, MOST, LongAnswers

KINDS = st.integers(0, 5).map(lambda number: (b"GET", b"/%d" % number))


@given(st.lists(st.tuples(KINDS, st.sampled_from([0, LONG - 1, LONG, 10 * LONG]))))
def test_a_kind_of_request_is_as_long_as_its_last_answer(answers: list[tuple[tuple[bytes, bytes], int]]) -> None:
    long = LongAnswers()
    for kind, size in answers:
        long.note(kind, size)
        assert (kind in long) is (size >= LONG)
    last = dict(answers)
    assert {kind for kind in last if kind in long} == {kind for kind, size in last.items() if size >= LONG}


def test_no_more_kinds_are_remembered_than_there_is_room_for_and_the_oldest_goes_first() -> None:
    long = LongAnswers()
    for number in range(MOST + 1):
        long.note(number, LONG)
    assert len(long) == MOST
    assert 0 not in long
    assert 1 in long
    assert MOST in long
