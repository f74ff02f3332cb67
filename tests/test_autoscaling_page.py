"""The options on docs/autoscaling.md are those there are. (That its example holds is seen with the other pages.)"""

import re
from pathlib import Path

from app_toolkit.config.fields import description
from app_toolkit.config.models import AutoscalingConfig
from app_toolkit.core.autoscale import AWAY_S, FORGOTTEN_S

PAGE = (Path(__file__).parent.parent / "docs" / "autoscaling.md").read_text("utf-8")


def test_page_lists_every_option_with_default_and_meaning() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \| (.*?) \|$", PAGE, re.MULTILINE)
    fields = AutoscalingConfig.model_fields.items()
    assert rows == [(name, str(field.default), description(AutoscalingConfig, name)) for name, field in fields]


def test_the_times_of_the_page_are_those_there_are() -> None:
    assert (FORGOTTEN_S, AWAY_S) == (10, 5)
    assert "until ten seconds after it was taken" in PAGE
    assert "more than five seconds after it was due" in PAGE
