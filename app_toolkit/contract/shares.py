"""Computes the shares of live revisions and of the members of a split from weights that users name."""

from collections.abc import Mapping, Sequence
from math import fsum, isfinite
from typing import TypeVar

from app_toolkit.errors import ConfigError

K = TypeVar("K", int, str)


def revision_shares(weights: Mapping[int, float], live: Sequence[int], application: str) -> dict[int, float]:
    """Return the share of each live revision, between 0 and 1. The sum is 1.

    Parameters:
        weights: Positive numbers of any sum, by revision. A revision that is missing has the weight 0.
        live: The live revisions.
        application: Its name, for messages.

    Raises:
        ConfigError: A revision is not live, a weight is negative or not finite, or all are 0.
    """
    return _shares(weights, live, f"application {application!r}", "live revision")


def member_shares(weights: Mapping[str, float], members: Sequence[str], split: str) -> dict[str, float]:
    """Return the share of each member of a split, between 0 and 1. The sum is 1.

    Parameters:
        weights: Positive numbers of any sum, by member. A member that is missing has the weight 0.
        members: The names of the members.
        split: Its name, for messages.

    Raises:
        ConfigError: There is no such member, a weight is negative or not finite, or all are 0.
    """
    return _shares(weights, members, f"split {split!r}", "member")


def mirror_shares(
    mirrors: Mapping[str, float], before: Mapping[str, float], members: Sequence[str], split: str
) -> dict[str, float]:
    """Return the share of the calls that each mirror of a split gets copies of, above 0 and at most 1.

    Parameters:
        mirrors: The new shares, by member. 0 ends the mirroring. The share of a member that is missing stays.
        before: The present shares.
        members: The names of the members.
        split: Its name, for messages.

    Raises:
        ConfigError: There is no such member, or a share is not between 0 and 1.
    """
    for name, share in mirrors.items():
        if name not in members:
            raise ConfigError(f"split {split!r} has no member {name}; it has {', '.join(members)}")
        if not 0 <= share <= 1:
            percent = f"{100 * share:g} %"
            raise ConfigError(
                f"the mirror of member {name} of split {split!r} is {percent}; it should be between 0 and 100 %"
            )
    return {name: share for name, share in {**before, **mirrors}.items() if share}


def _shares(weights: Mapping[K, float], names: Sequence[K], whole: str, part: str) -> dict[K, float]:
    listed = ", ".join(map(str, names))
    for name, weight in weights.items():
        if name not in names:
            shown = repr(name) if str(name) in map(str, names) else name  # "12" is not 12
            raise ConfigError(f"{whole} has no {part} {shown}; it has {listed}")
        is_number = isinstance(weight, int | float)
        if not (is_number and isfinite(weight) and weight >= 0):
            shown = f"{weight:g}" if is_number else repr(weight)
            raise ConfigError(f"the weight of {part} {name} is {shown}; it should be a number from 0")
    most = max(weights.values(), default=0.0)
    if not most:
        raise ConfigError(f"the weights of {whole} are all 0; one of {listed} must have a weight")
    unit = most if most > 1e300 else 1.0  # a sum of huge weights overflows
    scaled = {name: weights.get(name, 0.0) / unit for name in names}
    total = fsum(scaled.values())
    return {name: weight / total for name, weight in scaled.items()}
