"""Amounts of resources: what a replica asks for, and how a sentence shows what it lacks."""

from collections.abc import Mapping
from dataclasses import dataclass

from app_toolkit.interfaces import Resources


@dataclass(frozen=True, slots=True)
class Lack:
    asks: str
    free: str
    for_ever: bool
    """Whether the replica fits on no node, even if the node is empty."""


def amounts_of(resources: Resources) -> dict[str, float]:
    """Return the resources that a replica asks for, by the names that Ray gives them."""
    named = {"CPU": resources.num_cpus, "GPU": resources.num_gpus, "memory": resources.memory or 0.0}
    named.update(resources.custom)
    return {name: float(amount) for name, amount in named.items() if amount}


def format_amounts(amounts: Mapping[str, float]) -> str:
    return ", ".join(f"{amount:g} {name}" for name, amount in amounts.items()) or "nothing"
