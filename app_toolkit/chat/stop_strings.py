"""Decides which part of a streamed text may be sent, if the text ends at one of several strings."""

from collections.abc import Sequence


class StopStrings:
    """A text that arrives in parts and ends before the first of the stop strings.

    The end of the text is held back as long as it could be the beginning of a stop string.
    """

    def __init__(self, strings: Sequence[str]) -> None:
        """`strings`: the stop strings. Empty ones are ignored."""
        self.match: str | None = None
        """The stop string at which the text has ended. Further parts are ignored. None: it goes on."""
        self._strings = tuple(string for string in strings if string)
        self._held = ""

    @property
    def stopped(self) -> bool:
        """Whether the text has ended at a stop string."""
        return self.match is not None

    def add(self, part: str) -> str:
        """Return the text that is final now."""
        if self.stopped:
            return ""
        text = self._held + part
        places = [(at, string) for string in self._strings if (at := text.find(string)) >= 0]
        if places:
            at, self.match = min(places)
            self._held = ""
            return text[:at]
        held_length = max((_overlap(text, string) for string in self._strings), default=0)
        self._held = text[len(text) - held_length :]
        return text[: len(text) - held_length]

    def end(self) -> str:
        """Return the text that was held back, because no further part follows."""
        held_back, self._held = self._held, ""
        return held_back


def _overlap(text: str, string: str) -> int:
    """Return the length of the longest end of the text with which the string begins. It is shorter than the string."""
    longest = min(len(text), len(string) - 1)
    return next((length for length in range(longest, 0, -1) if string.startswith(text[len(text) - length :])), 0)
