"""The page of options says what the models say."""

from pathlib import Path

from app_toolkit.cli.reference import page
from app_toolkit.config.files import ApplicationOptions
from app_toolkit.config.models import (
    AutoscalingConfig,
    ClassConfig,
    DeploymentConfig,
    Faults,
    RayOptions,
    RecyclingConfig,
    ResourceOptions,
)
from app_toolkit.config.options import InstanceOptions, TrafficOptions

PAGE = Path(__file__).parents[2] / "docs/reference/config.md"


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text("utf-8") == f"{page()}\n", "python -m app_toolkit.cli.reference > docs/reference/config.md"


def test_every_option_is_on_the_page() -> None:
    text = page()
    options = {*InstanceOptions.model_fields, *ApplicationOptions.model_fields}
    options |= (ClassConfig.model_fields.keys() | DeploymentConfig.model_fields.keys()) - {"name"}
    options -= {"resources", "batch", "autoscaling_config", "faults", "traffic", "recycling"}
    options |= {f"autoscaling_config.{name}" for name in AutoscalingConfig.model_fields}
    options |= {f"faults.{name}" for name in Faults.model_fields}
    options |= {f"recycling.{name}" for name in RecyclingConfig.model_fields}
    options |= {f"resources.{name}" for name in ResourceOptions.model_fields if name != "ray"}
    options |= {f"resources.ray.{name}" for name in RayOptions.model_fields}
    options |= {f"traffic.{name}" for name in TrafficOptions.model_fields}
    options |= {"batch.NAME.max_batch_size"}
    assert not [name for name in options if f"\n| `{name}` | " not in text]


def test_a_line_has_the_bounds_both_defaults_and_the_meaning() -> None:
    lines = page().splitlines()
    assert "| `resources.num_cpus` | number from 0 to 1,024 | `0.1` | `1` | logical CPUs ↻ |" in lines
    meaning = "maximum client connections of one proxy; further ones get 503"
    line = f"| `max_connections` | integer or null, from 1 to 1,000,000 | `null` | {meaning} |"
    assert line in lines
    assert any(
        line.startswith("| `max_open_websockets` | integer from 0 to 1,000,000 | `1000` | – |") for line in lines
    )
    assert any(line.startswith("| `sync_threads` | integer from 1 to 64 | – | `1` |") for line in lines)
