"""Where a request of the AI SDK continues a stored conversation."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app_toolkit.chat import ChatError, MessageTree, StoredMessage
from app_toolkit.chat.ai_sdk.messages import UIChat
from app_toolkit.chat.ai_sdk.placement import Placement, placed

TREE = MessageTree(
    (
        StoredMessage("u1", "user", [{"type": "text", "text": "first"}]),
        StoredMessage("a1", "assistant", [{"type": "text", "text": "one"}], parent_id="u1"),
        StoredMessage("u2", "user", [{"type": "text", "text": "second"}], parent_id="a1"),
        StoredMessage("a2", "assistant", [{"type": "text", "text": "two"}], parent_id="u2"),
        StoredMessage("u3", "user", [{"type": "text", "text": "edited"}]),
        StoredMessage("a3", "assistant", [{"type": "text", "text": "three"}], parent_id="u3"),
    ),
    "a2",
)
"""A conversation whose first question was edited. The client calls the edit `u1`, as the AI SDK does."""


def sent(id: str, text: str, role: str = "user") -> dict[str, Any]:
    return {"id": id, "role": role, "parts": [{"type": "text", "text": text}]}


def place(*messages: dict[str, Any], tree: MessageTree = TREE, message_id: str | None = None) -> Placement:
    return placed(UIChat.model_validate({"messages": messages, "messageId": message_id}), tree)


def ids(messages: Sequence[StoredMessage]) -> list[str]:
    return [message.id for message in messages]


@pytest.mark.parametrize(
    ("messages", "message_id", "before", "last", "is_new"),
    [
        ([sent("u4", "new")], None, [], "u4", True),
        ([sent("a1", ""), sent("u4", "new")], None, ["u1", "a1"], "u4", True),
        ([sent("u1", "edited"), sent("u4", "new")], None, ["u3"], "u4", True),
        ([sent("u1", "first"), sent("u4", "new")], None, ["u1"], "u4", True),
        ([sent("x", "unknown"), sent("u4", "new")], None, ["u1", "a1", "u2", "a2"], "u4", True),
        ([sent("u4", "new")], "u2", ["u1", "a1"], "u4", True),
        ([sent("u1", "first")], None, [], "u1", False),
        ([sent("u1", "edited")], "u1", [], "u3", False),
        ([sent("a1", "forged", "assistant")], None, ["u1"], "a1", True),
    ],
)
def test_a_request_continues_the_branch_that_its_client_shows(
    messages: list[dict[str, Any]], message_id: str | None, before: list[str], last: str, is_new: bool
) -> None:
    placement = place(*messages, message_id=message_id)
    assert (ids(placement.before), placement.last.id, placement.is_new) == (before, last, is_new)
    assert placement.last.role == messages[-1]["role"]


def test_a_message_that_a_client_sends_alone_follows_the_active_one() -> None:
    placement = placed(UIChat.model_validate({"message": sent("u4", "new")}), TREE)
    assert (ids(placement.before), placement.is_new) == (["u1", "a1", "u2", "a2"], True)


def test_an_edit_with_the_id_of_the_first_message_gets_another_id() -> None:
    placement = place(sent("u2", "changed"))
    assert (ids(placement.before), placement.last.parent_id) == (["u1", "a1"], "a1")
    assert placement.last.id not in {message.id for message in TREE.messages}


def test_text_that_a_client_sends_for_the_assistant_is_not_stored() -> None:
    assert place(sent("a1", "forged", "assistant")).last.parts == TREE.messages[1].parts
    for last, status in (
        (sent("a9", "x", "assistant"), 409),
        (sent("u1", "x", "assistant"), 409),
        (sent("s", "x", "system"), 400),
    ):
        with pytest.raises(ChatError) as error:
            place(last)
        assert error.value.status == status


def test_fields_that_the_store_sets_are_not_taken_from_a_client() -> None:
    stored = place(sent("u4", "new") | {"metadata": {"x": 1}, "feedback": {"rating": "good"}, "model": "m"}).last
    assert (stored.metadata, stored.feedback, stored.model) == ({"x": 1}, None, None)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["u1", "a1", "u2", "a2", "u3", "x", ""]), st.sampled_from(["first", "second", "new"])
        ),
        min_size=1,
        max_size=4,
    ),
    st.sampled_from([None, "u1", "a2", "x"]),
)
def test_a_new_message_has_a_free_id_and_a_stored_parent(
    history: list[tuple[str, str]], message_id: str | None
) -> None:
    placement = place(*(sent(id, text) for id, text in history), message_id=message_id)
    stored = {message.id: message for message in TREE.messages}
    assert ids(placement.before) == ids(TREE.branch(placement.last.parent_id))
    if placement.is_new:
        assert placement.last.id not in stored
        assert placement.last.id
    else:
        assert stored[placement.last.id] == placement.last
