"""The embeddings example with the real model, where that is installed: examples/embeddings/README.md says how."""

import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import numpy as np
import pytest
from starlette.testclient import TestClient

from tests.docs.pages import page, post_of

sys.path.append(str(Path(__file__).parents[2] / "examples"))

from embeddings import weights

ANOTHER = "A cat sits on the mat, quietly; it dreams of fish."
EXPECTED = {
    "This is an example sentence": [0.067657, 0.063496, 0.048713, 0.079305, 0.037448, 0.002653],
    ANOTHER: [0.081967, -0.01624, -0.012811, 0.057516, -0.04585, 0.018156],
    "日本の首都は東京です。": [0.121339, 0.096834, 0.091415, -0.022084, -0.042056, 0.039561],
    "word " * 400: [-0.008124, -0.095586, -0.038673, 0.049662, -0.043794, 0.02372],
}
"""The beginnings of the vectors that Sentence Transformers 6.2.0 gives, with the same weights on PyTorch 2.15.0."""


def test_a_file_that_is_not_the_one_that_was_tried_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"something else")
    with pytest.raises(ValueError, match=r"model\.safetensors has the SHA-256 .*, and is to have 53aa5117"):
        weights.checked(tmp_path / "model.safetensors")


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    try:
        weights.folder()
    except PackageNotFoundError as error:
        pytest.skip(f"the model is not installed: {error}")
    from embeddings.app import app

    with TestClient(app) as client:
        yield client


def test_vectors_are_those_of_sentence_transformers(client: TestClient) -> None:
    vectors = client.post("/embed", json={"texts": list(EXPECTED)}).json()["vectors"]
    assert np.array(vectors).shape == (len(EXPECTED), 384)
    for vector, expected in zip(vectors, EXPECTED.values(), strict=True):
        assert vector[:6] == pytest.approx(expected, abs=2e-6)
        assert np.linalg.norm(vector) == pytest.approx(1, abs=1e-6)


def test_a_text_has_the_same_vector_alone_and_among_longer_ones(client: TestClient) -> None:
    (alone,) = client.post("/embed", json={"texts": [ANOTHER]}).json()["vectors"]
    among = client.post("/embed", json={"texts": [ANOTHER, *EXPECTED]}).json()["vectors"][0]
    assert among == pytest.approx(alone, abs=1e-6)


def test_texts_of_the_same_meaning_have_similar_vectors(client: TestClient) -> None:
    def score(first: str, second: str) -> float:
        return float(client.post("/similarity", json={"first": first, "second": second}).json()["score"])

    # Both as Sentence Transformers has them.
    assert score("A cat sits on the mat", "A kitten rests on the rug") == pytest.approx(0.65966, abs=1e-4)
    assert score("A cat sits on the mat", "The stock market fell today") == pytest.approx(0.10731, abs=1e-4)


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("Which animal is the biggest?", "A blue whale is the largest animal that has ever lived."),
        ("How do machines keep information?", "A computer stores everything as ones and zeros."),
        ("Why do pets nap so much?", "Cats sleep for more than half of the day."),
    ],
)
def test_search_finds_other_words_with_the_same_meaning(client: TestClient, asked: str, found: str) -> None:
    assert client.post("/search", json={"text": asked, "count": 1}).json()[0]["sentence"] == found


def test_requests_of_the_page_are_answered_as_shown(client: TestClient) -> None:
    (console,) = page("examples/embeddings/README.md").shown("console")
    path, body, shown = post_of(console)
    (hit,) = client.post(path, json=body).json()
    assert hit == {**shown[0], "score": pytest.approx(shown[0]["score"], abs=1e-4)}
