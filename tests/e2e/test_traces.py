"""One tree of spans covers a request, its call, its batch, and the HTTP request that the batch sends."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.observability.collector import Collector, collecting
from tests.patience import PATIENCE_S, wait_until
from tests.running import runs

HERE = Path(__file__).parent
CLIENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
TRACE_ID = CLIENT.split("-")[1]


@contextmanager
def on_ray(env: Mapping[str, str]) -> Iterator[str]:
    with runs() as start:
        yield start(str(HERE / "traced.py"), env=env).url()


@contextmanager
def on_processes(env: Mapping[str, str]) -> Iterator[str]:
    with runs() as start:
        yield start(str(HERE / "traced.py"), "--engine", "processes", env=env).url()


@contextmanager
def in_one_process(env: Mapping[str, str]) -> Iterator[str]:
    command = [sys.executable, "-m", "app_toolkit.cli", "dev", str(HERE / "traced.py"), "--port", "0", "--no-reload"]
    with subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        try:
            assert process.stderr is not None
            said = ""
            while (found := re.search(r"running on (http\S+)", said)) is None:
                said += process.stderr.readline()
            yield found[1]
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=PATIENCE_S)


def above(collector: Collector, name: str) -> list[str] | None:
    """Return the names of the spans above one span, outermost first. None: not all of them have been sent yet."""
    spans = {span.span_id: span for span in collector.of(TRACE_ID)}
    span = next((span for span in spans.values() if span.name == name), None)
    names: list[str] = []
    while span is not None and span.parent_span_id.hex() != CLIENT.split("-")[2]:
        span = spans.get(span.parent_span_id)
        names.extend([] if span is None else [span.name])
    return None if span is None else names[::-1]


@pytest.mark.parametrize(
    ("serving", "application"),
    [
        pytest.param(on_ray, "default/", marks=(pytest.mark.ray, pytest.mark.slow), id="ray"),
        pytest.param(on_processes, "default/", id="processes"),
        pytest.param(in_one_process, "", id="process"),
    ],
)
def test_one_tree_covers_a_request_with_its_call_and_batch(serving, application) -> None:
    with collecting() as collector:
        env = {**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_BSP_SCHEDULE_DELAY": "200"}
        with serving(env) as url:
            answered = httpx.get(
                f"{url}/predict",
                params={"url": f"{collector.url}/outgoing"},
                headers={"traceparent": CLIENT},
                trust_env=False,
                timeout=PATIENCE_S,
            )
            assert answered.status_code == 200
            wait_until(lambda: above(collector, "GET"))
        names = above(collector, "GET")
        assert names is not None
        ours = [name for name in names if not name.startswith("fastapi")]
        assert names[:3] == ["GET /predict", "attempt", "replica"]
        assert ours[3] == "GET /predict", "that of FastAPI"
        assert ours[-4:-1] == [f"{application}model.predict", "attempt", "replica"]
        assert ours[-1].startswith("batch ")
        (batch,) = [span for span in collector.of(TRACE_ID) if span.name == ours[-1]]
        (item,) = [span for span in collector.of(TRACE_ID) if span.span_id == batch.parent_span_id]
        assert [link.span_id for link in batch.links] == [item.span_id]
