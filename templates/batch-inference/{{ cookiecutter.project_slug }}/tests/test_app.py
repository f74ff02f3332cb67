from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient

from {{ cookiecutter.package_name }}.app import app
from {{ cookiecutter.package_name }}.classifier import Classifier


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with TestClient(app) as client:
        yield client


def test_a_text_is_predicted(client: TestClient) -> None:
    assert client.post("/predict", json={"text": "I love it"}).json()["positive"] > 0.5
    assert client.post("/predict", json={"text": "I hate it"}).json()["positive"] < 0.5


def test_texts_that_arrive_together_share_a_batch(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Classifier.predict.batch, "max_batch_size", 3)
    monkeypatch.setattr(Classifier.predict.batch, "batch_wait_timeout_s", 60)  # a batch runs only if it is full
    predictions = client.post("/predict/many", json={"texts": ["good", "bad", "good"]}).json()
    assert [each["batch_size"] for each in predictions] == [3, 3, 3]
    assert predictions[0]["positive"] > predictions[1]["positive"]


@pytest.mark.parametrize("text", ["", "x" * 10_001])
def test_a_text_of_a_wrong_length_is_refused(client: TestClient, text: str) -> None:
    assert client.post("/predict", json={"text": text}).status_code == 422
