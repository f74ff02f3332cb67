"""What type checkers are to say of instances. Where they are to complain, a comment ignores it, and has to."""

from collections.abc import Sequence
from typing import assert_type

from app_toolkit import connect, connect_async
from app_toolkit.control.revisions import RevisionStatus
from app_toolkit.control.status import InstanceStatus
from app_toolkit.observability.slowest import SlowRequest

with connect(wait_timeout_s=60) as instance:
    assert_type(instance.status(), InstanceStatus)
    assert_type(instance.scale("shop/writer", 3), int)
    assert_type(instance.scale("shop/writer", num_replicas=3), int)
    assert_type(instance.slow("shop", last=3), Sequence[SlowRequest])
    assert_type(instance.rollback("shop").revision, int)
    assert_type(instance.rollback("shop", to=12).revision, int)
    assert_type(instance.history("shop"), tuple[RevisionStatus, ...])
    instance.set_traffic("shop", {12: 90, 13: 10})
    instance.set_split("shop/writer", {"writer-v1": 50, "writer-v2": 50})
    instance.rollout("shop", steps=[10, 100], every="1m", guards=["p95<300ms"])
    instance.scale("shop/writer", "three")  # type: ignore[arg-type]
    instance.scale("shop/writer")  # type: ignore[call-arg]
    instance.scale("shop/writer", replicas=3)  # type: ignore[call-arg]
    instance.set_traffic("shop", {"writer-v1": 50})  # type: ignore[dict-item]


async def main() -> None:
    async with connect_async() as instance:
        assert_type(await instance.status(), InstanceStatus)
        assert_type(await instance.scale("shop/writer", 3), int)
        await instance.scale("shop/writer", "three")  # type: ignore[arg-type]
        await instance.set_traffic()  # type: ignore[call-arg]
        instance.scale("shop/writer", 3) + 1  # type: ignore[operator]
