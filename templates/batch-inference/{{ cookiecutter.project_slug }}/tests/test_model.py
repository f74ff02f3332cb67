import pytest

from {{ cookiecutter.package_name }}.model import SentimentModel


@pytest.fixture(scope="module")
def model() -> SentimentModel:
    return SentimentModel()


def test_the_model_tells_good_from_bad(model: SentimentModel) -> None:
    good, bad = model.predict(["a great and beautiful dinner", "an awful film, the worst"])
    assert bad < 0.5 < good


def test_the_other_texts_of_a_batch_do_not_change_a_prediction(model: SentimentModel) -> None:
    (alone,) = model.predict(["a great dinner"])
    together = model.predict(["something else", "a great dinner"])
    assert together[1] == pytest.approx(alone)


def test_a_text_without_known_words_is_undecided(model: SentimentModel) -> None:
    assert model.predict(["?!"]) == [0.5]
