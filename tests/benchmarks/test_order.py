"""The order in which contenders are measured."""

import random

from benchmarks.__main__ import _order
from benchmarks.contenders import CONTENDERS


def test_each_contender_is_measured_once_and_bare_and_app_toolkit_are_adjacent() -> None:
    orders = [[each.name for each in _order(CONTENDERS, random.Random(seed))] for seed in range(50)]
    for names in orders:
        assert sorted(names) == sorted(each.name for each in CONTENDERS)
        assert abs(names.index("bare") - names.index("toolkit-2")) == 1
    assert len({names.index("bare") < names.index("toolkit-2") for names in orders}) == 2
    assert len({tuple(names) for names in orders}) > 40
