"""An assistant that finds the sections of a folder of Markdown pages which fit a question, and quotes the best one."""

import asyncio
import math
import re
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from app_toolkit import Deployment
from app_toolkit.chat import ChatEvent, ChatRequest, FinishEvent, ReasoningEvent, TextEvent, UsageEvent

WORD = re.compile(r"[a-z0-9_@-]{2,}")
PART = re.compile(r"\S+\s*|\s+")
COMMON = frozenset(
    ["the", "and", "for", "are", "with", "that", "this", "how", "what", "does", "can", "you", "from", "not", "its"]
)


@dataclass(frozen=True, slots=True)
class Section:
    """One section of a page."""

    page: str
    title: str
    text: str
    words: Counter[str]


class Assistant(Deployment, max_ongoing_requests=64, ray_actor_options={"num_cpus": 0.1}):
    """Answers questions about the pages of a folder."""

    def __init__(self, folder: str, period_s: float = 0.02) -> None:
        """Read the pages.

        Parameters:
            folder: Folder with Markdown files.
            period_s: Seconds between two words of an answer. Default: 0.02.
        """
        self._period_s = period_s
        self._sections = [section for path in sorted(Path(folder).glob("*.md")) for section in sections(path)]
        self._pages_with = Counter(word for section in self._sections for word in section.words)

    async def chat(self, request: ChatRequest) -> AsyncIterator[ChatEvent]:
        """Yield the answer to the last message."""
        asked = words(request.prompt)
        yield ReasoningEvent(f"Looking through {len(self._sections)} sections for: {', '.join(asked) or 'nothing'}.")
        answer = self._answer(asked)
        count = 0
        for part in PART.findall(answer):
            await asyncio.sleep(self._period_s)
            yield TextEvent(part)
            count += 1
        yield UsageEvent(len(request.prompt.split()), count)
        yield FinishEvent()

    def _answer(self, asked: Counter[str]) -> str:
        ranked = sorted(self._sections, key=lambda section: self._score(section, asked), reverse=True)
        if not ranked or self._score(ranked[0], asked) == 0:
            return (
                "I found nothing about that in the documentation. Try **batching**, **autoscaling**, **resumable "
                "streams** or **what happens when a replica dies**."
            )
        best, *others = ranked[:3]
        sources = "\n".join(f"- {section.title} (`{section.page}`)" for section in (best, *others))
        return f"**{best.title}**\n\n{best.text}\n\n---\n\nSources:\n\n{sources}\n"

    def _score(self, section: Section, asked: Counter[str]) -> float:
        """Return how well a section fits: BM25, with the words of its title counted three times."""
        length = sum(section.words.values())
        score = 0.0
        for word in asked:
            there = section.words[word]
            rare = math.log(1 + (len(self._sections) + 0.5) / (self._pages_with[word] + 0.5))
            score += rare * there * 2.2 / (there + 1.2 * (0.25 + 0.75 * length / 120)) if there else 0.0
        return score


def words(text: str) -> Counter[str]:
    """Return the words of a text that say something, without a plural `s`."""
    return Counter(word.removesuffix("s") for word in WORD.findall(text.lower()) if word not in COMMON)


def sections(path: Path) -> list[Section]:
    """Return the sections of a Markdown page. The lines of code blocks are no headings."""
    found: list[tuple[str, list[str]]] = []
    in_code = False
    for line in path.read_text("utf-8").splitlines():
        in_code ^= line.startswith("```")
        if line.startswith("#") and not in_code:
            found.append((line.lstrip("# "), []))
        elif found:
            found[-1][1].append(line)
    texts = [(title, "\n".join(lines).strip()) for title, lines in found]
    return [
        Section(path.name, title, text[:2_500], words(f"{title} {title} {title} {text}"))
        for title, text in texts
        if len(text) > 40
    ]
