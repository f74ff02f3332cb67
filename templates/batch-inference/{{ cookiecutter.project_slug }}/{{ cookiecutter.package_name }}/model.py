"""A small model: the sentiment of a text, from the hashes of its words. Replace it by your own."""

import re
import zlib

import numpy as np
from numpy.typing import NDArray

BUCKETS = 2_048
WORD = re.compile(r"\w+")

GOOD = """
a wonderful day with great friends; I love this beautiful place; an excellent and delicious dinner;
the best film of the year; they were happy and kind; it works perfectly and fast; thank you, brilliant work;
a nice and helpful answer; what a pleasant surprise; good value, I recommend it
"""
BAD = """
a terrible day with awful weather; I hate this ugly place; a disgusting and cold dinner;
the worst film of the year; they were angry and rude; it breaks constantly and is slow; broken, a waste of money;
a useless and wrong answer; what a sad disappointment; bad quality, I regret it
"""


class SentimentModel:
    """Logistic regression over hashed words, trained on the sentences above."""

    def __init__(self, steps: int = 300, rate: float = 1.0) -> None:
        """Train the model, which takes some milliseconds.

        Parameters:
            steps: Steps of gradient descent. Default: 300.
            rate: The learning rate. Default: 1.
        """
        good, bad = GOOD.split(";"), BAD.split(";")
        features = hash_words(good + bad)
        labels = np.array([1.0] * len(good) + [0.0] * len(bad))
        self._weights = np.zeros(BUCKETS)
        for _ in range(steps):
            self._weights -= rate * features.T @ (sigmoid(features @ self._weights) - labels) / len(labels)

    def predict(self, texts: list[str]) -> list[float]:
        """Return the probability that each text is positive. All texts are one product of matrices."""
        return [float(each) for each in sigmoid(hash_words(texts) @ self._weights)]


def hash_words(texts: list[str]) -> NDArray[np.float64]:
    """Return one row for each text: how often it has the words of each bucket."""
    rows = np.zeros((len(texts), BUCKETS))
    for row, text in zip(rows, texts, strict=True):
        for word in WORD.findall(text.lower()):
            row[zlib.crc32(word.encode()) % BUCKETS] += 1
    return rows


def sigmoid(values: NDArray[np.float64]) -> NDArray[np.float64]:
    probabilities: NDArray[np.float64] = 1 / (1 + np.exp(-values.clip(-30, 30)))
    return probabilities
