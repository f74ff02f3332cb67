"""Decides whether this machine has the resources that a replica asks for. It counts as Ray does.

CPUs are counted only if the instance states how many there are: the replicas of one machine share its CPUs.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from app_toolkit.engines.amounts import Lack, amounts_of, format_amounts
from app_toolkit.interfaces import Resources

UNIT = 10_000
"""Resources are counted in units of one ten-thousandth, so that sums are exact."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """The resources of this machine."""

    amounts: Mapping[str, float]
    """All but the GPUs, by name."""
    gpus: tuple[str, ...] = ()
    """The GPUs, as `CUDA_VISIBLE_DEVICES` names them."""


@dataclass(frozen=True, slots=True)
class Grant:
    """The resources that one replica has reserved, in units."""

    amounts: Mapping[str, int] = field(default_factory=dict)
    """All but the GPUs, by name."""
    gpus: Mapping[str, int] = field(default_factory=dict)
    """The share of each GPU."""

    num_cpus: float = 0.0
    """The CPUs that it expects. They determine the threads of libraries for computations."""
    memory: int | None = None
    """The most memory that it gets in bytes; None: no limit."""
    nice: int = 0
    """By how much its priority is lower than that of other processes."""


NOTHING = Grant()


def grant(capacity: Capacity, granted: Collection[Grant], resources: Resources) -> Grant | Lack:
    """Return what a replica reserves, or what it lacks.

    A part of a GPU comes from the GPU that has the least left of those that have enough. Whole GPUs are those that
    nobody uses.

    Parameters:
        capacity: The resources of this machine.
        granted: What the other replicas have reserved.
        resources: What the replica asks for.
    """
    asks = amounts_of(resources)
    if "CPU" not in capacity.amounts:
        asks.pop("CPU", None)
    used: Counter[str] = Counter()
    used_gpus: Counter[str] = Counter()
    for other in granted:
        used.update(other.amounts)
        used_gpus.update(other.gpus)
    totals = {name: _units(capacity.amounts.get(name, 0.0)) for name in asks if name != "GPU"}
    units = {name: _units(amount) for name, amount in asks.items()}
    left = {gpu: UNIT - used_gpus[gpu] for gpu in capacity.gpus}
    gpus = _choose(left, units.pop("GPU", 0))
    if gpus is not None and all(amount <= totals[name] - used[name] for name, amount in units.items()):
        return Grant(units, gpus, resources.num_cpus, resources.memory, resources.nice)
    is_too_much = any(amount > totals[name] for name, amount in units.items())
    for_ever = is_too_much or resources.num_gpus > len(capacity.gpus)
    shown = {name: capacity.amounts.get(name, 0.0) for name in asks}
    if "GPU" in asks:
        shown["GPU"] = float(len(capacity.gpus))
    if for_ever:
        return Lack(format_amounts(asks), format_amounts(shown), for_ever=True)
    free = {name: (totals[name] - used[name] if name in totals else sum(left.values())) / UNIT for name in asks}
    text = ", ".join(f"{amount:g} of {shown[name]:g} {name}" for name, amount in free.items())
    return Lack(format_amounts(asks), text, for_ever=False)


def _choose(left: Mapping[str, int], asked: int) -> Mapping[str, int] | None:
    """Return the share of each GPU that a replica gets; None: there are not enough. `left`: the unused shares."""
    if asked < UNIT:
        fitting = [gpu for gpu, share in left.items() if share >= asked]
        return {min(fitting, key=lambda gpu: left[gpu]): asked} if asked and fitting else None if asked else {}
    unused = [gpu for gpu, share in left.items() if share == UNIT]
    number = asked // UNIT
    return dict.fromkeys(unused[:number], UNIT) if len(unused) >= number else None


def _units(amount: float) -> int:
    return round(amount * UNIT)
