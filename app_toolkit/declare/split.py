"""Splits: several deployments of one class behind one handle. Each call goes to one of them, by weights."""

import inspect
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Generic, TypeVar, cast

from app_toolkit.calls.handle import Handle, in_one_process, methods_of
from app_toolkit.config.models import SplitSpec
from app_toolkit.contract.methods import many_of
from app_toolkit.contract.shares import member_shares, mirror_shares
from app_toolkit.declare.deployment import Bound, NamedDeployment
from app_toolkit.errors import ConfigError
from app_toolkit.interfaces import Deployable, WeightedCallee

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Split(WeightedCallee, Generic[T_co]):
    """Several deployments, its members, behind one handle. `split` creates it.

    As a dependency, `Annotated[Writer, Depends(writer)]`, it passes the handle to a route. Objects are compared by
    identity.
    """

    def __init__(
        self,
        name: str,
        members: Mapping[str, Deployable],
        shares: Mapping[str, float],
        mirrors: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        self._name = name
        self.members = members
        self.shares = shares
        self.mirrors = mirrors
        self.cls = _common_class(name, members)
        self._handle = Handle(self)

    @property
    def name(self) -> str:
        return self._name

    @property
    def handle(self) -> T_co:
        """The handle that calls the members: for scripts, lifespans, and as an argument of `bind`."""
        return cast(T_co, self._handle)

    def set_weights(
        self, weights: "Mapping[Bound[Any], float]", *, mirror: "Mapping[Bound[Any], float] | None" = None
    ) -> None:
        """Change the weights for the calls of this process, whose deployments run in it. Thread-safe.

        Calls that run stay with their member.

        Parameters:
            weights: Positive numbers of any sum. A member that is missing has the weight 0.
            mirror: The share of the calls of other members that a member gets copies of, between 0 and 1. The share of
                a member that is missing stays. 0 ends it. Default: all stay.

        Raises:
            ConfigError: The deployments run in other processes, there is no such member, a weight is negative or not
                finite, all are 0, or a share is not between 0 and 1.
        """
        if not in_one_process():
            raise ConfigError(
                f"the members of split {self.name!r} run in other processes: change its weights by "
                f'set_split("APPLICATION/{self.name}", ...)'
            )
        members = tuple(self.members)
        shares = member_shares(_by_name(self.name, weights), members, self.name)
        self.mirrors = mirror_shares(_by_name(self.name, mirror or {}), self.mirrors, members, self.name)
        self.shares = shares

    # Asynchronous, because FastAPI runs a synchronous dependency in a thread.
    async def __call__(self) -> T_co:
        return self.handle

    def __repr__(self) -> str:
        return f"<split of {self.cls.__name__} named {self.name}>"


class NamedSplit(WeightedCallee):
    """A split of a running application, of which only the names, the methods and the shares are known."""

    def __init__(self, application: str, spec: SplitSpec) -> None:
        self.application = application
        self._name = spec.name
        self.members = {name: NamedDeployment(application, name, spec.methods) for name in spec.shares}
        self.shares = spec.shares
        self.cls = next(iter(self.members.values())).cls

    @property
    def name(self) -> str:
        return self._name


def split(
    weights: Mapping[Bound[T], float], *, mirror: Mapping[Bound[Any], float] | None = None, name: str
) -> Split[T]:
    """Divide the calls of one handle between several deployments: `split({small: 0.9, large: 0.1}, name="writer")`.

    The handle has the methods of the nearest class that all members inherit from. The members are ordinary deployments.
    Each call goes to one of them, also if it is retried. If the member has no replica, the call waits for it.

    Parameters:
        weights: Positive numbers of any sum, by bound deployment. A member with the weight 0 gets no calls.
        mirror: The share of the calls, between 0 and 1, that a deployment gets copies of. Nobody gets its results, and
            nothing that it does affects the callers. It is a member, too. Without a weight, it has the weight 0.
        name: The name of the split, which no deployment of the app has.

    Returns:
        A dependency for routes, like a bound deployment.

    Raises:
        ConfigError: The members have no common class with methods, or two have one name; the name is invalid; a weight
            is negative or not finite, all are 0, or a share of a mirror is not between 0 and 1.
    """
    SplitSpec(name=name, shares={})  # checks the name
    if not weights:
        raise ConfigError(f"split {name!r} takes the weights of its members, {{deployment: weight}}, not {weights!r}")
    by_name, mirrors = _by_name(name, weights), _by_name(name, mirror or {})
    _by_name(name, dict.fromkeys((*weights, *(mirror or {})), 0))  # checks that no two have one name
    members = {member.name: member for member in (*weights, *(mirror or {}))}
    names = tuple(members)
    return Split(name, members, member_shares(by_name, names, name), mirror_shares(mirrors, {}, names, name))


def _by_name(split: str, weights: Mapping[Bound[Any], float]) -> dict[str, float]:
    if not isinstance(weights, Mapping):
        raise ConfigError(f"split {split!r} takes the weights of its members, {{deployment: weight}}, not {weights!r}")
    shares: dict[str, float] = {}
    for member, weight in weights.items():
        if not isinstance(member, Bound):
            raise ConfigError(f"split {split!r} divides calls between what `bind` gives, not {member!r}")
        if not isinstance(weight, int | float):
            raise ConfigError(f"the weight of member {member.name} is {weight!r}; it should be a number from 0")
        if member.name in shares:
            raise ConfigError(
                f"two members of split {split!r} are named {member.name!r}: give one another name, as in "
                f'{member.cls.__name__}.options(name="...").bind(...)'
            )
        shares[member.name] = weight
    return shares


def _common_class(split: str, members: Mapping[str, Deployable]) -> type:
    """Return a class with the methods of the nearest class that all members inherit from.

    The kinds of the methods are those that the members have. A base class may declare a method that yields as
    `def items(self) -> AsyncIterator[int]: ...`.
    """
    first, *others = (member.cls for member in members.values())
    common = next(
        (cls for cls in first.__mro__ if all(issubclass(other, cls) for other in others) and methods_of(cls)), None
    )
    if common is None:
        raise ConfigError(
            f"the members of split {split!r} have no common class with methods: "
            f"{', '.join(f'{name} is of {member.cls.__name__}' for name, member in members.items())}"
        )
    for method in methods_of(common):
        shapes = {name: _shape(member.cls, method) for name, member in members.items()}
        if len(set(shapes.values())) > 1:
            raise ConfigError(
                f"the members of split {split!r} differ in {common.__name__}.{method}: "
                f"{', '.join(f'{name} has {shape}' for name, shape in shapes.items())}"
            )
    return type(common.__name__, (), {name: inspect.getattr_static(first, name) for name in methods_of(common)})


def _shape(cls: type, method: str) -> str:
    kind = methods_of(cls)[method]
    function: Callable[..., Any] = getattr(cls, method)
    return f"a {kind} method{' with @batch' if many_of(function) is not None else ''}"
