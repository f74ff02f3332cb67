"""When a loop counts as blocked, and which line is named."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app_toolkit.observability.stalls import (
    CHECK_INTERVAL_S,
    WARN_AFTER_S,
    Blocked,
    StackFrame,
    Watched,
    blocking_line,
    is_debugging,
    is_starting,
)

LIBRARIES = ["/usr/lib/python3", "/venv/site-packages"]
DEBUGGER = ["/usr/lib/python3/bdb.py", "/usr/lib/python3/pdb.py", "/usr/lib/python3/cmd.py"]
FOLDERS = ["/usr/lib/python3", "/srv", "/srv/shop", ""]

SLEEP = StackFrame("/usr/lib/python3/socket.py", 7, "recv")
USER = StackFrame("/srv/shop/shop.py", 19, "block")
CALLER = StackFrame("/srv/shop/main.py", 3, "endpoint")
LIBRARY = StackFrame("/venv/site-packages/requests/api.py", 59, "get")
RUNNER = StackFrame("/usr/lib/python3/asyncio/runners.py", 118, "run")

FRAMES = st.sampled_from([SLEEP, USER, CALLER, LIBRARY, RUNNER, StackFrame("<frozen importlib._bootstrap>", 1, "load")])


def test_the_innermost_line_of_user_code_is_named_by_its_file_in_the_apps_folder():
    assert blocking_line([SLEEP, LIBRARY, USER, CALLER, RUNNER], LIBRARIES, FOLDERS) == "shop.py:19 in block"
    assert str(Blocked(5.2, "shop.py:19 in block")) == "blocked for 5 s at shop.py:19 in block"


def test_innermost_line_is_named_if_no_user_code_runs():
    assert blocking_line([LIBRARY, RUNNER], LIBRARIES, []) == f"{LIBRARY.file}:59 in get"


def test_loop_that_waits_for_events_is_not_blocked():
    assert blocking_line([RUNNER], LIBRARIES, FOLDERS) is None
    assert blocking_line([], LIBRARIES, FOLDERS) is None
    assert str(Blocked(1.0, None)) == "blocked for 1 s"


def test_a_debugger_and_the_start_of_an_app_are_recognized():
    pdb = StackFrame("/usr/lib/python3/pdb.py", 435, "interaction")
    assert is_debugging([pdb, USER], DEBUGGER)
    assert not is_debugging([SLEEP, LIBRARY, USER], DEBUGGER)
    assert is_starting([SLEEP, USER, StackFrame("/venv/site-packages/uvicorn/importer.py", 1, "import_from_string")])
    assert not is_starting([SLEEP, USER, RUNNER])


@pytest.mark.parametrize(
    ("file", "debugs"),
    [
        ("/venv/site-packages/debugpy/_vendored/pydevd/_pydevd_bundle/pydevd_frame.py", True),
        ("/opt/pycharm/helpers/pydev/_pydevd_bundle/pydevd_frame.py", True),
        ("/opt/pycharm/helpers/pydev/pydevd.py", True),
        ("/venv/site-packages/pydevd.py", True),
        ("/srv/shop/cmd.py", False),
        ("/srv/shop/pdb.py", False),
        ("/srv/shop/bdb.py", False),
        ("/srv/shop/pydevd_notes.py", False),
        ("/home/pydev/shop.py", False),
    ],
)
def test_a_debugger_is_known_by_the_path_of_its_files_and_not_by_a_name_that_users_may_choose(file, debugs):
    assert is_debugging([SLEEP, StackFrame(file, 9, "wait"), USER], DEBUGGER) is debugs


@given(st.lists(FRAMES, max_size=8))
def test_the_named_line_is_one_of_the_stack_and_of_user_code_if_any_runs(stack):
    line = blocking_line(stack, LIBRARIES, FOLDERS)
    if not stack or stack[0] is RUNNER:
        assert line is None
    else:
        users = [frame for frame in stack if frame in (USER, CALLER)]
        frame = users[0] if users else stack[0]
        assert line is not None
        assert line.endswith(f":{frame.line} in {frame.function}")


@given(st.floats(0, 100), st.lists(st.floats(0, 3), max_size=20))
def test_a_block_is_reported_once_and_never_before_it_lasted_a_second(asked, steps):
    state, now, reports = Watched(asked=asked), asked, 0
    for step in steps:
        now += step
        assert 0 <= state.next_look_s(now) <= CHECK_INTERVAL_S
        if state.must_report(now):
            assert now - asked >= WARN_AFTER_S
            reports += 1
            state = Watched(asked=state.asked, reported=True)
    assert reports == (now - asked >= WARN_AFTER_S)


@given(st.floats(0, 100), st.floats(0, CHECK_INTERVAL_S), st.floats(0, CHECK_INTERVAL_S), st.floats(1, 100))
def test_the_duration_of_a_block_is_never_too_short_and_at_most_one_interval_too_long(responded, until, after, lasted):
    began, ended = responded + until, responded + until + after + lasted
    state = Watched(asked=began + after, responded=responded)
    actual = ended - began
    assert actual - 1e-9 <= state.blocked_s(ended) <= actual + CHECK_INTERVAL_S + 1e-9


@given(st.floats(0, 100), st.floats(0, 100))
def test_time_in_a_debugger_does_not_count(asked, lasted):
    paused = Watched(asked=asked, responded=asked / 2).paused(asked + lasted)
    assert paused.blocked_s(asked + lasted) == 0
    assert not paused.must_report(asked + lasted)
    assert Watched().paused(lasted) == Watched()
