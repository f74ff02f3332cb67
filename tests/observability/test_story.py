from app_toolkit.clock import ManualClock
from app_toolkit.observability.story import LONGEST_CAUSE, Story


def test_a_story_can_be_asked_by_group_application_and_replica():
    clock = ManualClock(5.0)
    story = Story(clock.now)
    story.tell("shop/chat", "Start", replica="a", cause="revision v1")
    story.tell("shop/shop", "Start", replica="b")
    story.tell("shopping/chat", "Start", replica="c")
    assert [entry.replica for entry in story.entries(group="shop")] == ["a", "b"]
    assert [entry.replica for entry in story.entries(group="shop/chat")] == ["a"]
    assert [entry.group for entry in story.entries(replica="c")] == ["shopping/chat"]
    assert [entry.replica for entry in story.entries(last=2)] == ["b", "c"]
    assert story.entries(last=0) == []
    [entry] = story.entries(replica="a")
    assert (entry.at, entry.what, entry.cause) == (5.0, "Start", "revision v1")


def test_the_oldest_entries_give_way():
    story = Story(lambda: 0.0, size=3)
    for number in range(5):
        story.tell("g", str(number))
    assert [entry.what for entry in story.entries()] == ["2", "3", "4"]
    assert len(story) == 3


def test_of_a_long_cause_the_end_is_kept():
    story = Story(lambda: 0.0)
    story.tell("g", "Exited", cause="x" * 10_000 + "ImportError")
    [entry] = story.entries()
    assert entry.cause.endswith("ImportError")
    assert len(entry.cause) <= LONGEST_CAUSE + 2
