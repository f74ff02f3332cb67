"""Routing policies that tests import by their paths."""

from collections.abc import Sequence

from app_toolkit import RoutedCall, RoutedReplica

NUMBER = 7


def last(call: RoutedCall, replicas: Sequence[RoutedReplica]) -> Sequence[str]:
    """Prefer the replica whose id is the last one."""
    return [max(each.id for each in replicas)]


async def later(call: RoutedCall, replicas: Sequence[RoutedReplica]) -> Sequence[str]:
    return []
