"""What a text costs, by the size of its batch and by the threads that compute: the least of all rounds, so that what
others use of the machine is not in it.

cd examples && python -m embeddings.measure
"""

import random
import time
from collections.abc import Callable

from embeddings.corpus import SENTENCES
from embeddings.minilm import MiniLM

BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64)
THREADS = (1, 2)
ROUNDS = 15
TEXTS = list(SENTENCES[:64])


def milliseconds(model: MiniLM, batch_size: int, clock: Callable[[], float]) -> float:
    """Of each text, by this clock."""
    began = clock()
    for start in range(0, len(TEXTS), batch_size):
        model(TEXTS[start : start + batch_size])
    return (clock() - began) / len(TEXTS) * 1_000


def main() -> None:
    rng = random.Random(1)
    models = {threads: MiniLM(threads) for threads in THREADS}
    clocks = {"wall": time.perf_counter, "CPU": time.process_time}
    found: dict[tuple[int, int, str], list[float]] = {
        (size, threads, name): [] for size in BATCH_SIZES for threads in THREADS for name in clocks
    }
    for _ in range(ROUNDS):
        for size, threads, name in rng.sample(list(found), len(found)):  # the machine drifts
            found[size, threads, name].append(milliseconds(models[threads], size, clocks[name]))
    columns = [(threads, name) for threads in THREADS for name in clocks]
    print(f"| batch | {' | '.join(f'{threads} threads: {name} ms a text' for threads, name in columns)} |")
    print(f"| --: | {' | '.join('--:' for _ in columns)} |")
    for size in BATCH_SIZES:
        print(f"| {size} | {' | '.join(f'{min(found[size, *column]):.1f}' for column in columns)} |")


if __name__ == "__main__":
    main()
