"""The deployment of the model."""

from dataclasses import dataclass

from app_toolkit import Deployment, batch

from {{ cookiecutter.package_name }}.model import SentimentModel


@dataclass(frozen=True)
class Prediction:
    positive: float
    """The probability that the text is positive."""
    batch_size: int
    """The number of texts in the same run of the model."""


class Classifier(Deployment, num_replicas=1):
    """One model per replica. A batch runs if it is full, or 5 ms after its first text."""

    def __init__(self) -> None:
        self._model = SentimentModel()

    @batch(max_batch_size=64, batch_wait_timeout_s=0.005)
    def predict(self, texts: list[str]) -> list[Prediction]:
        """Callers pass one text. As this is no `async def`, it runs in a thread and does not block the event loop."""
        return [Prediction(positive, len(texts)) for positive in self._model.predict(texts)]


classifier = Classifier.bind()
