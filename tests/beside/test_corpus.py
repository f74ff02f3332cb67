"""Every entry of the corpus against the edge, with an app behind it that keeps a ledger."""

from itertools import product

import pytest

from app_toolkit.edge.request_parser import HeadLimits, RequestParser
from tests.beside.app import Ledger
from tests.beside.client import Outcome, observe
from tests.beside.corpus import CORPUS, GET, Entry
from tests.beside.listing import PAGE, cell, listed, page
from tests.edge.world import World

SILENCE_S = 30.0
"""A server that is silent for so long hangs. It closes no connection before."""

STRANGE = [*range(0x21), 0x7F, *range(0x80, 0x100)]


@pytest.mark.parametrize("entry", CORPUS, ids=lambda entry: entry.name)
def test_the_proxy_handles_each_entry_as_the_corpus_says(world: World, ledger: Ledger, entry: Entry) -> None:
    outcome = observe(entry, world.port, ledger, silence_s=SILENCE_S, most=len(entry.answers))
    assert len(outcome.statuses) == len(entry.answers), outcome
    for status, right in zip(outcome.statuses, entry.answers, strict=True):
        assert status in right, outcome
    assert outcome.end == entry.end, outcome
    begun = [line for line in outcome.ran if line.endswith(" cut")]
    assert tuple(line for line in outcome.ran if line not in begun) == entry.ran
    assert len(begun) <= entry.may_begin


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64])
def test_the_parser_understands_the_same_however_the_bytes_are_cut(size: int) -> None:
    for entry in CORPUS:
        data = b"".join(entry.segments)
        if len(data) < 2_048:  # what is fed at once
            pieces = [data[start : start + size] for start in range(0, len(data), size)]
            assert understood(pieces) == understood([data]), entry.name


def understood(pieces: list[bytes]) -> list[tuple[object, ...]]:
    parser = RequestParser(HeadLimits())
    for piece in pieces:
        parser.feed(piece)
    return [
        (each.head(b"hop"), each.path, each.complete, each.keep_alive, each.websocket, type(each.error))
        for each in parser.requests
    ]


def test_the_corpus_is_consistent() -> None:
    names = [entry.name for entry in CORPUS]
    assert len(names) == len(set(names)) >= 70
    assert not [line for entry in CORPUS for line in entry.ran if "/smuggled" in line or "/behind" in line]


def test_the_page_lists_entries_of_the_corpus_with_their_results() -> None:
    written = PAGE.read_text("utf-8")
    entries = {entry.name: entry for entry in CORPUS}
    rows = listed(written)
    assert rows
    assert f"| of {len(CORPUS)} entries |" in written
    observed = written.index("| of ")
    assert written[:observed] == page("", "")[:observed]
    for name, kind, outcome in rows:
        entry = entries[name]
        assert kind == entry.kind
        assert outcome in [cell(Outcome(statuses, entry.end, ())) for statuses in product(*entry.answers)]


@pytest.mark.parametrize("where", ["name", "first in a name", "value", "host"])
def test_no_byte_in_a_field_causes_a_server_error(world: World, ledger: Ledger, where: str) -> None:
    statuses: dict[int, int] = {}
    for byte in STRANGE:
        char = bytes([byte])
        field = {
            "name": b"a%bb: 1" % char,
            "first in a name": b"%bb: 1" % char,
            "value": b"x: a%bb" % char,
            "host": b"x: 1",
        }[where]
        head = b"GET /a HTTP/1.1\r\nhost: a%bb\r\n" % char if where == "host" else GET
        entry = Entry(f"{byte:#04x}", "malformed", (head + field + b"\r\n\r\n",), ((200, 400),), "closed", ())
        outcome = observe(entry, world.port, ledger, silence_s=SILENCE_S, most=1)
        (statuses[byte],) = outcome.statuses
        assert (outcome.end, outcome.ran) == (("open", ("GET /a 0",)) if statuses[byte] == 200 else ("closed", ()))
    accepted = {byte for byte, status in statuses.items() if status == 200}
    assert set(statuses.values()) <= {200, 400}
    assert accepted == ({0x09, 0x20, *range(0x80, 0x100)} if where == "value" else set())
