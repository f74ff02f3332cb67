"""Which replicas are replaced while they work, and when."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app_toolkit.config.models import RecyclingConfig
from app_toolkit.control.reconcile import ReplicaSetRecord, due, noted, plan, take
from app_toolkit.control.recycling import LEAST_S, reached
from app_toolkit.control.replica_state import Phase, ProbePassed, ReplicaRecord, Started
from app_toolkit.control.status import replica_set_status
from app_toolkit.errors import ConfigError
from app_toolkit.interfaces import Location
from app_toolkit.types import Address, NodeId, ReplicaId
from tests.control.worlds import LIVE, REPLICA_SET, replica_set_spec, with_options

configs = st.builds(
    RecyclingConfig,
    max_requests=st.integers(1, 2_000),
    max_age_s=st.none() | st.floats(10, 1e6),
    max_memory=st.none() | st.integers(1, 2_000),
    jitter=st.floats(0, 1),
)


def running(id: str, *, requests: int = 0, memory: int = 0, since: float = 0.0) -> ReplicaRecord:
    return ReplicaRecord(
        ReplicaId(id),
        REPLICA_SET,
        "v1",
        Phase.RUNNING,
        since,
        serving_since=since,
        ready=True,
        probed_at=since,
        requests=requests,
        memory=memory,
        reloadable=LIVE,
    )


@given(configs, st.text(min_size=1), st.integers(0, 3_000), st.integers(0, 3_000), st.floats(0, 1e6))
def test_a_limit_is_lower_by_at_most_the_jitter_and_no_replica_serves_less_than_the_least_time(
    config: RecyclingConfig, id: str, requests: int, memory: int, since: float
) -> None:
    replica = running(id, requests=requests, memory=memory, since=since)
    limits = {limit: at for at, limit, _ in reached(config, replica)}
    assert limits == {limit: at for at, limit, _ in reached(config, replica)}, "another controller decides otherwise"
    assert all(at >= since + LEAST_S for at in limits.values())
    assert config.max_requests is not None
    if requests >= config.max_requests:
        assert "max_requests" in limits
    elif "max_requests" in limits:
        assert requests >= config.max_requests * (1 - config.jitter) - 1e-6
    assert ("max_memory" in limits) == (config.max_memory is not None and memory > config.max_memory)
    if config.max_age_s is not None:
        age_s = limits["max_age_s"] - since
        assert config.max_age_s * (1 - config.jitter) - 1e-3 <= age_s <= max(config.max_age_s, LEAST_S) + 1e-3


def test_the_limits_of_replicas_differ() -> None:
    config = RecyclingConfig(max_age_s=1_000, jitter=0.2)
    ages = [at for number in range(20) for at, _, _ in reached(config, running(f"chat-1-{number}"))]
    assert len(set(ages)) == 20
    assert min(ages) < 850 < 950 < max(ages)


def test_a_new_replica_is_ready_before_a_recycled_one_is_retired() -> None:
    spec = replica_set_spec(target=2, recycling=RecyclingConfig(max_requests=100))
    record = ReplicaSetRecord(REPLICA_SET, (running("r1", requests=120), running("r2", requests=20)))
    now = LEAST_S
    actions = plan(spec, record, now, 1)
    assert [type(action).__name__ for action in actions if action.replica != "r2"] == ["Probe", "Recycle", "Start"]
    for action in actions:
        record = noted(record, action, now)
    assert record.recycled == {"max_requests": 1}
    new = record.replicas[-1].id
    record = take(record, Started(new, Location(Address("unix:/new"), NodeId("n"))), now)
    assert not [action for action in plan(spec, record, now, 1) if type(action).__name__ == "Retire"]
    status = replica_set_status(spec, record, now)
    assert [replica.recycled is not None for replica in status.replicas] == [True, False, False]
    record = take(record, ProbePassed(new), now)
    (retire,) = (action for action in plan(spec, record, now, 1) if type(action).__name__ == "Retire")
    assert (retire.replica, retire.why) == ("r1", "it has received 120 requests, and max_requests is 100")


def test_the_plan_is_due_when_a_replica_reaches_its_age() -> None:
    spec = replica_set_spec(target=1, recycling=RecyclingConfig(max_age_s=1_800, jitter=0), health_check_period_s=3_600)
    record = ReplicaSetRecord(REPLICA_SET, (running("r1"),))
    assert due(spec, record) == 1_800
    assert due(with_options(spec, recycling=None), record) == 3_600


@pytest.mark.parametrize("options", [{}, {"jitter": 0.2}])
def test_recycling_without_a_limit_is_refused(options: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="one of max_requests, max_age_s and max_memory should be set"):
        RecyclingConfig(**options)
