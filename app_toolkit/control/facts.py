"""What operations note about an application, beside its revisions.

The state store, the status, the command line and the dashboard take a fact from here, and none of them names one. So a
new fact is one more field of `Facts`.
"""

from dataclasses import dataclass, fields
from typing import NamedTuple


class ShownFact(NamedTuple):
    """A fact in words."""

    name: str
    text: str
    since: float | None
    """The Unix time in seconds from which it holds; None: it has no such time."""


@dataclass(frozen=True, slots=True)
class Frozen:
    """Why an application is frozen, and since when."""

    reason: str
    since: float
    """The Unix time in seconds."""

    def __str__(self) -> str:
        return self.reason


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts of an application. None: this one is not noted.

    `str` of a value is its text, and a value may have the time `since`. A new revision keeps the facts. They end with
    the application.
    """

    frozen: Frozen | None = None
    """Why most operations are refused (`control/freeze.py`)."""

    @property
    def shown(self) -> list[ShownFact]:
        """The facts that are noted, in words. The name is that of the field."""
        noted = ((field.name.replace("_", " "), getattr(self, field.name)) for field in fields(self))
        return [ShownFact(name, str(value), getattr(value, "since", None)) for name, value in noted if value]
