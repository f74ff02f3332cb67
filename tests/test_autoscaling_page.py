"""The times on docs/autoscaling.md are those there are. (That its example holds is seen with the other pages.)"""

from app_toolkit.control.autoscale import AWAY_S, FORGOTTEN_S
from tests.docs.pages import page


def test_the_times_of_the_page_are_those_there_are() -> None:
    text = " ".join(page("docs/autoscaling.md").text.split())
    assert (FORGOTTEN_S, AWAY_S) == (10, 5)
    assert "until ten seconds after it was taken" in text
    assert "more than five seconds after it was due" in text
