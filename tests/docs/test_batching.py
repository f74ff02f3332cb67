"""What docs/batching.md shows is what happens. (That all of it runs is seen with the other pages.)"""

from pathlib import Path
from typing import Any

from fastapi.testclient import TestClient

from app_toolkit.calls.batching import AHEAD
from app_toolkit.config.files import read_file
from app_toolkit.declare.planning import plan
from app_toolkit.userapp.batch import BatchSettings

from .pages import Page, page

PAGE = page("docs/batching.md")


def shown(name: str) -> dict[str, Any]:
    """What the block defines that has this function; each of them is whole."""
    (block,) = [block for block in PAGE.blocks if f"def {name}(" in block.text]
    return Page(PAGE.name, f"```python\n{block.text}```").run()


def test_the_routes_of_the_page_take_one_item() -> None:
    with TestClient(shown("score")["app"]) as client:
        assert client.post("/score", json={"name": "tea", "price": 3}).json() == {"value": 1.5}
        refused = client.post("/score", json={"name": "tea", "price": -3})
        assert (refused.status_code, refused.json()) == (422, {"detail": "/score: a price below 0"})
        assert client.get("/greet?name=Ann", headers={"language": "de"}).json() == "Ann (de)"
        assert client.get("/greet?name=Ann").json() == "Ann (en)"


def test_the_limits_of_the_page_are_those_there_are() -> None:
    limits = BatchSettings()
    for name in ("max_batch_size", "batch_wait_timeout_s", "max_concurrent_batches"):
        assert f"| `{name}` | {getattr(limits, name)} |" in PAGE.text
    assert f"at most {AHEAD} entries ahead" in PAGE.text
    assert shown("summarise")["summarise"].batch.max_batch_size == 8192


def test_the_deployment_of_the_page_fills_its_batches() -> None:
    config = shown("tag")["tagger"].config
    assert (config.reloadable_options.batch, config.max_ongoing_requests) == (
        {"tag": {"max_concurrent_batches": 2}},
        32,
    )


def test_the_file_of_the_page_tunes_the_endpoint_of_the_page(tmp_path: Path) -> None:
    (yaml,) = PAGE.shown("yaml")
    (tmp_path / "app.yaml").write_text(yaml)
    overrides = read_file(tmp_path / "app.yaml").application("shop").deployments
    spec = plan(shown("embed_text")["shop"], target="shop:shop", app_dir=".", overrides=overrides)
    limits = {"max_batch_size": 64, "batch_wait_timeout_s": 0.02}
    assert spec.deployment("search").config.reloadable_options.batch == {"embed_text": limits}
