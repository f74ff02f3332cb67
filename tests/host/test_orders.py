"""How the pieces of payloads are pickled."""

import gc
import pickle

from app_toolkit.host.orders import Piece


def test_a_shared_buffer_is_pickled_out_of_band_and_read_in_place() -> None:
    given = bytearray(b"x" * 100_000)
    buffers: list[pickle.PickleBuffer] = []
    pickled = pickle.dumps([Piece(memoryview(given)), Piece(b"y" * 100_000)], 5, buffer_callback=buffers.append)
    assert len(pickled) < 1_000
    first, second = pickle.loads(pickled, buffers=[buffer.raw().toreadonly() for buffer in buffers])
    assert bytes(second) == b"y" * 100_000
    given[0] = ord("z")
    assert first[0] == ord("z"), "it was not copied"
    assert (first.readonly, second.readonly) == (True, True)


def test_a_shared_buffer_may_be_part_of_a_reference_cycle() -> None:
    view = memoryview(bytearray(100))
    lent = Piece(view)
    pickle.dumps(lent, 5, buffer_callback=lambda buffer: None)
    circle: list[object] = [view, lent]
    circle.append(circle)
    del view, lent, circle
    assert gc.collect() >= 1  # where views are lent as they are, this ends the process
