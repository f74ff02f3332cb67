"""The filters of an exchange: each is one feature of requests, in a file of its own.

A filter is an object with some of these methods. The exchange calls them in this order:

| hook | when | may |
|---|---|---|
| `arrived(exchange)` | the head of the request is complete | raise a `RequestError` |
| `place(exchange, ingress)` | an ingress may serve the request | set `exchange.preference` |
| `request(exchange)` | the ingress is known | raise a `RequestError` |
| `waits(exchange)` | the request could ask for a permit | return the seconds to wait, `math.inf` for more of the body |
| `waited(exchange)` | these seconds have passed | note something |
| `sending(exchange, terms)` | an attempt begins | change the terms |
| `sent(exchange)` | the request was sent, and whenever more of its body was | note something |
| `response(exchange, head)` | the head of the response has arrived | change its fields, observe its body |
| `stream(exchange)` | the response is a stream | observe its body |
| `ended(exchange, status, outcome)` | the exchange has ended | note something |

For a filter, an exchange has:

* `marks`: what the filter must remember of the request, by the filter. A request without marks gets no `sending`,
  `response` and `ended`, and a complete one no `waits`: nobody has anything to do there, and there are thousands of
  them.
* `targets`: the live revisions, or the members of a split, of which one was chosen. Without them, no `sent` is called.
* `fields`: fields that the response gets, whoever gives it.
* `observe`: the bytes of the body of the response go to an object, too.
* `proceed` and `fail`: a filter that has returned `math.inf` from `waits` calls one of them later.

A filter whose `option` is the name of a field of `Policy` gets `request`, and `place` without marks, only from
deployments that set this option.

A filter may also have `samples()`, which yields its metrics and is called by other threads, `forget(ingress)`, for an
ingress that is removed, and `aclose()`, which ends what it has begun when its plane closes.
"""

from collections.abc import Iterator
from typing import Any, TypeVar

from app_toolkit.config.models import Policy
from app_toolkit.contract.identity import ReplicaSetKey
from app_toolkit.observability.metrics import Sample

F = TypeVar("F")

HOOKS = ("arrived", "place", "request", "waits", "waited", "sending", "sent", "response", "stream", "ended")


class Filters:
    """The filters of one plane, in their order: each hook is called for one filter after another."""

    __slots__ = (*HOOKS, "__weakref__", "_filters")

    arrived: tuple[Any, ...]
    place: tuple[Any, ...]
    request: tuple[Any, ...]
    waits: tuple[Any, ...]
    waited: tuple[Any, ...]
    sending: tuple[Any, ...]
    sent: tuple[Any, ...]
    response: tuple[Any, ...]
    stream: tuple[Any, ...]
    ended: tuple[Any, ...]

    def __init__(self, *filters: object) -> None:
        self._filters = filters
        for hook in HOOKS:
            setattr(self, hook, tuple(getattr(filter_, hook) for filter_ in filters if hasattr(filter_, hook)))

    def of(self, kind: type[F]) -> F | None:
        """Return the filter of a class. None: there is none."""
        return next((filter_ for filter_ in self._filters if isinstance(filter_, kind)), None)

    def forget(self, ingress: ReplicaSetKey) -> None:
        """Note that an ingress was removed."""
        for filter_ in self._filters:
            if hasattr(filter_, "forget"):
                filter_.forget(ingress)

    def samples(self) -> Iterator[Sample]:
        """Yield the samples of all filters. Thread-safe."""
        for filter_ in self._filters:
            if hasattr(filter_, "samples"):
                yield from filter_.samples()

    async def aclose(self) -> None:
        """Close all filters, in their order."""
        for filter_ in self._filters:
            if hasattr(filter_, "aclose"):
                await filter_.aclose()


def selected(hooks: tuple[Any, ...], policy: Policy) -> tuple[Any, ...]:
    """Return the hooks of the filters that concern a deployment with this policy."""
    return tuple(
        hook
        for hook in hooks
        if (option := getattr(hook.__self__, "option", None)) is None or getattr(policy, option) is not None
    )
