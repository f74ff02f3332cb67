"""The embeddings example, in one process and on Ray, over a tiny encoder; `test_minilm.py` has the real one."""

import asyncio
import math
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest

from tests.docs.pages import page, post_of
from tests.engines.contract.served import Served, serving
from tests.engines.contract.visit import Visit, visiting
from tests.examples.embedding import app as tiny

pytestmark = pytest.mark.anyio

PLACES = 4
"""What a request that calls holds: a turn and a slot at the ingress, and both at the model."""


@pytest.fixture(scope="module", params=["embedded", "ray"])
def served(request: pytest.FixtureRequest) -> Iterator[Served]:
    yield from serving(request, tiny)


@pytest.fixture
async def visit(served: Served, tmp_path: Path) -> AsyncIterator[Visit]:
    async with visiting(served, tmp_path, "hold") as visit:
        yield visit


async def embed(visit: Visit, *texts: str) -> httpx.Response:
    return await visit.client.post("/embed", json={"texts": texts})


async def test_each_text_is_answered_with_its_own_vector(visit: Visit) -> None:
    first, second, again = (await embed(visit, "one", "two", "one")).json()["vectors"]
    assert first == again != second
    assert len(first) == tiny.WIDTH
    assert math.hypot(*first) == pytest.approx(1)


async def test_two_texts_are_as_similar_as_their_vectors(visit: Visit) -> None:
    answer = await visit.client.post("/similarity", json={"first": "a red house", "second": "a red boat"})
    assert answer.json()["score"] == pytest.approx(2 / 3)


async def test_a_search_finds_the_nearest_sentences_of_the_corpus_in_their_order(visit: Visit) -> None:
    asked = {"text": "the largest hot desert", "count": 3}
    hits = (await visit.client.post("/search", json=asked)).json()
    assert hits[0]["sentence"] == "The Sahara is the largest hot desert in the world."
    assert [hit["score"] for hit in hits] == sorted((hit["score"] for hit in hits), reverse=True)
    assert len(hits) == 3


async def test_requests_of_the_page_are_answered(visit: Visit) -> None:
    """With the real model also in its words: test_minilm.py."""
    (console,) = page("examples/embeddings/README.md").shown("console")
    path, body, shown = post_of(console)
    answered = (await visit.client.post(path, json=body)).json()
    assert [[(name, type(value)) for name, value in hit.items()] for hit in answered] == [
        [(name, type(value)) for name, value in hit.items()] for hit in shown
    ]


async def test_requests_that_arrive_while_the_model_runs_are_its_next_batch(visit: Visit) -> None:
    held = asyncio.create_task(embed(visit, f"{tiny.HOLD}{visit.ground.folder}"))
    await visit.noted("held")
    asked = [asyncio.create_task(embed(visit, f"text {number}")) for number in range(5)]
    asked.append(asyncio.create_task(visit.client.post("/search", json={"text": "text 5"})))
    await visit.loaded(lambda load: load.ongoing == PLACES * (1 + len(asked)))
    visit.ground.open("hold")
    answers = await asyncio.gather(held, *asked)
    assert {answer.status_code for answer in answers} == {200}
    assert visit.ground.notes == ["held", "6 texts"]


@pytest.mark.parametrize(
    ("path", "body", "named"),
    [
        ("/embed", {"texts": []}, "texts"),
        ("/embed", {"texts": ["x"] * 33}, "texts"),
        ("/embed", {"texts": [""]}, "texts"),
        ("/similarity", {"first": "x"}, "second"),
        ("/search", {"text": "x", "count": 21}, "count"),
    ],
)
async def test_empty_missing_or_too_large_input_is_refused_by_name(
    visit: Visit, path: str, body: dict[str, object], named: str
) -> None:
    answer = await visit.client.post(path, json=body)
    assert answer.status_code == 422
    assert named in answer.json()["detail"][0]["loc"]
