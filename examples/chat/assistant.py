"""An assistant that finds the sections of a folder of Markdown pages which fit a question, and quotes the best one."""

import asyncio
import math
import re
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from app_toolkit import Deployment
from app_toolkit.chat import (
    ChatEvent,
    ChatRequest,
    DocumentEvent,
    FinishEvent,
    ReasoningEvent,
    TextEvent,
    UsageEvent,
)

WORD = re.compile(r"[a-z0-9_@-]{2,}")
PART = re.compile(r"\S+\s*|\s+")
LINK = re.compile(r"!?\[([^\]]*)\]\((?!https?:)[^)]*\)")
COMMON = frozenset(
    re.findall(
        r"\w+",
        "a an and are as at be by can do does for from happen happens how i if in is it its my no not of on or that "
        "the there this to what when where which who why will with work works you your",
    )
)
SUFFIXES = ("ing", "es", "ed", "s")

MAX_TEXT = 2_500
"""Characters that are quoted of a section."""

NEAR = 0.25
"""The similarity of two vectors from which on a section answers a question."""


class Embedder(Protocol):
    """Turns a text into a vector of length 1, an array of NumPy."""

    async def embed(self, text: str) -> Any: ...


@dataclass(frozen=True, slots=True)
class Section:
    """One section of a page."""

    page: str
    title: str
    text: str
    words: Counter[str]


class Assistant(Deployment, max_ongoing_requests=64, max_open_streams=0, resources={"num_cpus": 0.1}):
    """Answers questions about the pages of a folder."""

    def __init__(
        self, folder: str, embedder: Embedder | None = None, *, without: Sequence[str] = (), period_s: float = 0.02
    ) -> None:
        """Read the pages.

        Parameters:
            folder: Folder with Markdown files.
            embedder: Finds sections by their meaning. Default: sections are found by their words.
            without: Names of pages that are left out, without `.md`. Default: none.
            period_s: Seconds between two words of an answer. Default: 0.02.
        """
        self._period_s = period_s
        self._embedder = embedder
        pages = [path for path in sorted(Path(folder).glob("*.md")) if path.stem not in without]
        self._sections = [section for path in pages for section in sections(path)]
        self._sections_with = Counter(word for section in self._sections for word in section.words)
        self._vectors: Sequence[Any] = ()
        self._embedding = asyncio.Lock()

    async def chat(self, request: ChatRequest) -> AsyncIterator[ChatEvent]:
        """Yield the answer to the last message."""
        question = request.prompt
        how = "by words" if self._embedder is None else "by meaning"
        yield ReasoningEvent(f"I search {len(self._sections)} sections of the documentation {how}.\n")
        found = await self._search(question)
        if found:
            yield ReasoningEvent(f"“{found[0].title}” in {found[0].page} fits best.")
        count = 0
        for part in PART.findall(answer(found)):
            await asyncio.sleep(self._period_s)
            yield TextEvent(part)
            count += 1
        for section in found:
            yield DocumentEvent(section.title, "text/markdown", section.page)
        yield UsageEvent(len(question.split()), count)
        yield FinishEvent()

    async def _search(self, question: str) -> Sequence[Section]:
        """Return the sections that fit a question, at most three, the best one first."""
        asked = words(question)
        by_words = [self._score(section, asked) for section in self._sections]
        if self._embedder is None:
            scores, fits = by_words, [score > 0 for score in by_words]
        else:
            similarities = await self._similarities(self._embedder, question)
            scores = fused(by_words, similarities)
            fits = [similarity > NEAR for similarity in similarities]
        return [self._sections[index] for index in ranking(scores) if fits[index]][:3]

    async def _similarities(self, embedder: Embedder, question: str) -> list[float]:
        """Return how similar the meaning of each section is to that of a question, from -1 to 1."""
        async with self._embedding:
            if not self._vectors:
                # The embedder batches the calls that are under way.
                texts = [f"{section.title}. {section.text[:500]}" for section in self._sections]
                self._vectors = await asyncio.gather(*map(embedder.embed, texts))
        asked = await embedder.embed(question[:2_000])
        return [float(vector @ asked) for vector in self._vectors]

    def _score(self, section: Section, asked: Counter[str]) -> float:
        """Return how well the words of a section fit: BM25."""
        length = sum(section.words.values())
        score = 0.0
        for word in asked:
            there = section.words[word]
            rare = math.log(1 + (len(self._sections) + 0.5) / (self._sections_with[word] + 0.5))
            score += rare * there * 2.2 / (there + 1.2 * (0.25 + 0.75 * length / 120)) if there else 0.0
        return score


def ranking(scores: Sequence[float]) -> list[int]:
    """Return the indexes of these scores, that of the highest one first."""
    return sorted(range(len(scores)), key=scores.__getitem__, reverse=True)


def fused(*rankings: Sequence[float]) -> list[float]:
    """Return one score for several: reciprocal rank fusion, because the scores have different scales."""
    total = [0.0] * len(rankings[0])
    for scores in rankings:
        for rank, index in enumerate(ranking(scores)):
            total[index] += 1 / (10 + rank)
    return total


def answer(found: Sequence[Section]) -> str:
    """Return the answer that quotes the first of these sections and names the pages of all of them."""
    if not found:
        return (
            "I found nothing about that in the documentation. Try **batching**, **autoscaling**, **resumable "
            "streams** or **what happens when a replica dies**."
        )
    page, *others = dict.fromkeys(f"`{section.page}`" for section in found)
    more = f" See also {', '.join(others)}." if others else ""
    return f"### {found[0].title}\n\n{found[0].text}\n\nThis is from {page}.{more}\n"


def words(text: str) -> Counter[str]:
    """Return the words of a text that say something, without their endings."""
    return Counter(stem(word) for word in WORD.findall(text.lower()) if word not in COMMON)


def stem(word: str) -> str:
    """Return a word without its ending: `batch` for `batches` and `batching`."""
    for suffix in SUFFIXES:
        if word.endswith(suffix) and len(word) - len(suffix) >= 4:
            return word.removesuffix(suffix)
    return word


def sections(path: Path) -> list[Section]:
    """Return the sections of a Markdown page. The lines of code blocks are no headings."""
    found: list[tuple[str, list[str]]] = []
    in_code = False
    for line in path.read_text("utf-8").splitlines():
        in_code ^= line.lstrip().startswith("```")
        if line.startswith("#") and not in_code:
            found.append((line.lstrip("# "), []))
        elif found:
            found[-1][1].append(line)
    page = found[0][0] if found else ""
    texts = [(title, LINK.sub(r"\1", "\n".join(lines)).strip()) for title, lines in found]
    return [
        Section(path.name, title, shortened(text), words(f"{page} {page} {title} {title} {title} {text}"))
        for title, text in texts
        if len(text) > 40
    ]


def shortened(text: str) -> str:
    """Return the first blocks of a text that have at most `MAX_TEXT` characters, so that no code block is cut."""
    if len(text) <= MAX_TEXT:
        return text
    cut = text[:MAX_TEXT].rpartition("\n\n")[0]
    return f"{cut}\n```" if cut.count("```") % 2 else cut
