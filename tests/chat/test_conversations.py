"""Trees of messages, and the titles of conversations."""

from hypothesis import given
from hypothesis import strategies as st

from app_toolkit.chat import MessageTree, StoredMessage
from app_toolkit.chat.conversations import TITLE_LENGTH, MessageRole, title_of


def message(id: str, parent_id: str | None = None, role: MessageRole = "user") -> StoredMessage:
    return StoredMessage(id, role, [{"type": "text", "text": id}], parent_id=parent_id)


@st.composite
def trees(draw: st.DrawFn) -> MessageTree:
    """Trees whose messages have numbers as ids, in the order in which they were added."""
    count = draw(st.integers(1, 12))
    parents = [draw(st.sampled_from([None, *map(str, range(number))])) for number in range(count)]
    messages = [message(str(number), parent) for number, parent in enumerate(parents)]
    return MessageTree(tuple(messages), str(draw(st.integers(0, count - 1))))


def test_a_branch_leads_from_the_first_message_to_the_last_one() -> None:
    messages = message("1"), message("2", "1", "assistant"), message("3", "2"), message("4", "1", "assistant")
    tree = MessageTree(messages, "3")
    assert [each.id for each in tree.active_branch] == ["1", "2", "3"]
    assert [each.id for each in tree.branch("4")] == ["1", "4"]
    assert [each.id for each in tree.siblings()["4"]] == ["2", "4"]
    assert tree.newest_end("1") == "4"
    assert tree.newest_end("2") == "3"
    assert MessageTree().active_branch == ()


@given(trees())
def test_the_newest_branch_of_a_message_has_it_and_ends_with_a_message_without_children(tree: MessageTree) -> None:
    parents = {each.parent_id for each in tree.messages}
    for each in tree.messages:
        end = tree.newest_end(each.id)
        assert each in tree.branch(end)
        assert end not in parents
        assert each in tree.siblings()[each.id]


@given(st.sampled_from(["user", "assistant", "system"]), st.text())
def test_a_title_is_one_short_line_of_the_text_of_the_user(role: MessageRole, text: str) -> None:
    title = title_of(StoredMessage("1", role, [{"type": "text", "text": text}]))
    assert 0 < len(title) <= TITLE_LENGTH
    assert title == " ".join(title.split())
    title.encode()
    if role != "user" or not text.strip():
        assert title == "New conversation"
    else:
        written = text.encode(errors="replace").decode().replace("\0", "?")
        assert title.removesuffix("…") in " ".join(written.split())


def test_a_conversation_that_begins_with_files_only_has_the_name_of_the_first_one_with_a_name_as_its_title() -> None:
    files = [{"type": "file", "url": "/files/1"}, {"type": "file", "url": "/files/2", "filename": "tides of 2025.csv"}]
    blank = {"type": "text", "text": " "}
    assert title_of(StoredMessage("1", "user", [blank, *files])) == "tides of 2025.csv"
    assert title_of(StoredMessage("1", "user", [*files, {"type": "text", "text": "Which one?"}])) == "Which one?"
    assert title_of(StoredMessage("1", "user", files[:1])) == "New conversation"
