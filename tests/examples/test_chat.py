"""The chat example: its page, and its assistant behind two protocols."""

import json
import re
import shutil
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from app_toolkit.chat import ChatMessage, ChatRequest, TextEvent
from app_toolkit.userapp.loading import load

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """A browser that has opened the page."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sys, "path", list(sys.path))
        for name in [each for each in sys.modules if each.partition(".")[0] == "chat"]:
            patched.delitem(sys.modules, name)
        patched.setenv("CHAT_DATABASE", str(tmp_path_factory.mktemp("chat") / "chats.db"))
        patched.setenv("CHAT_SEARCH", "words")
        app = load("chat.app:app", str(ROOT / "examples"))
        with TestClient(app) as client:
            client.get("/")
            yield client
            assert client.portal is not None
            client.portal.call(sys.modules["chat.app"].store.close)


def test_the_page_and_its_modules_come_from_the_app_alone(client: TestClient) -> None:
    page = client.get("/")
    assert page.headers["content-type"].startswith("text/html")
    assert page.headers["content-security-policy"].startswith("default-src 'self'; img-src 'self' data:;")
    pending, seen = set(re.findall(r'(?:href|src)="(static/[^"]+)"', page.text)), set[str]()
    assert pending >= {"static/chat.js", "static/style.css", "static/theme.js"}
    while pending:
        path = pending.pop()
        file = client.get(f"/{path}")
        assert file.status_code == 200, path
        seen.add(path)
        if path.endswith(".js") and "vendor" not in path:
            pending |= {f"static/{each}" for each in re.findall(r'from "\./([^"]+)"', file.text)} - seen
            assert "http" not in re.sub(r"http://www\.w3\.org/2000/svg", "", file.text), path
    assert "static/vendor/purify.js" in seen
    assert "http" not in page.text


def test_each_vendored_file_is_listed_with_its_version_and_license() -> None:
    vendor = ROOT / "examples/chat/static/vendor"
    rows = re.findall(
        r"^\| `([^`]+)` \| \[(\S+)\]\(\S+\) \| (\S+) \|", (vendor / "README.md").read_text(), re.MULTILINE
    )
    listed = {file.rstrip("/") for file, _, _ in rows}
    assert {path.name for path in vendor.iterdir()} == {*listed, "README.md", "licenses"}
    for file, package, version in rows:
        script = vendor / file / "katex.min.js" if file.endswith("/") else vendor / file
        assert version in script.read_text("utf-8"), package
        assert (vendor / "licenses" / f"{Path(file).stem}.txt").is_file()


def test_each_browser_is_a_user(client: TestClient) -> None:
    cookie = client.cookies["visitor"]
    assert client.get("/").headers.get("set-cookie") is None
    asked = TestClient(client.app)
    assert asked.get("/api/conversations").status_code == 401
    assert "open the page" in asked.post("/api/chat", json={"messages": [{"role": "user"}]}).text
    (set_cookie,) = asked.get("/").headers.get_list("set-cookie")
    assert "HttpOnly" in set_cookie
    assert "SameSite=lax" in set_cookie
    assert asked.cookies["visitor"] != cookie
    assert asked.get("/api/conversations").json() == []


def test_the_assistant_quotes_the_documentation(client: TestClient) -> None:
    body = {"id": "one", "message": {"id": "m", "role": "user", "parts": [{"type": "text", "text": "batch calls"}]}}
    with client.stream("POST", "/api/chat", json=body) as answer:
        data = [line.removeprefix("data: ") for line in answer.iter_lines() if line.startswith("data: ")]
    assert data[-1] == "[DONE]"
    parts = [json.loads(each) for each in data[:-1]]
    assert "batching.md" in "".join(part["delta"] for part in parts if part["type"] == "text-delta")
    assert client.get("/api/chat/one/stream").status_code == 204
    stored = client.get("/api/conversations/one").json()
    assert (stored["title"], [each["role"] for each in stored["messages"]]) == ("batch calls", ["user", "assistant"])


def test_clients_of_openai_reach_the_same_assistant(client: TestClient) -> None:
    body = {"model": "assistant", "messages": [{"role": "user", "content": "How does autoscaling work?"}]}
    answer = client.post("/v1/chat/completions", json=body).json()
    assert "autoscaling.md" in answer["choices"][0]["message"]["content"]


@pytest.mark.anyio
async def test_question_without_an_answer_gets_suggestions(client: TestClient) -> None:
    from chat.assistant import Assistant  # importable once the app is

    assistant = Assistant(str(ROOT / "docs"), period_s=0)
    request = ChatRequest((ChatMessage("user", "zzzz"),))
    answer = "".join([event.text async for event in assistant.chat(request) if isinstance(event, TextEvent)])
    assert answer.startswith("I found nothing")


@pytest.mark.anyio
async def test_the_embedder_finds_a_section_without_any_of_its_words(client: TestClient, tmp_path: Path) -> None:
    from chat.app import MINILM
    from chat.assistant import Assistant

    if missing := [package for package in MINILM if find_spec(package) is None]:
        pytest.skip(f"examples/embeddings/README.md says how to install the model; there is no {', '.join(missing)}")
    from embeddings.app import minilm

    encode = minilm()

    class Encoder:
        async def embed(self, text: str) -> Any:
            return encode([text])[0]

    shutil.copy(ROOT / "docs" / "concepts.md", tmp_path)
    assistant = Assistant(str(tmp_path), Encoder(), period_s=0)
    request = ChatRequest((ChatMessage("user", "A machine crashed. Are my visitors affected?"),))
    answer = "".join([event.text async for event in assistant.chat(request) if isinstance(event, TextEvent)])
    assert "concepts.md" in answer


def test_headings_in_code_and_links_to_other_pages_are_left_out(client: TestClient, tmp_path: Path) -> None:
    from chat.assistant import sections, stem

    text = "See [the list](list.md) and [the site](https://example.org). This is long enough."
    (tmp_path / "page.md").write_text(f"# Page\n\n{text}\n\n```bash\n# no heading\n```\n\n## Short\n\nno\n")
    (section,) = sections(tmp_path / "page.md")
    assert section.text.startswith("See the list and [the site](https://example.org).")
    assert section.text.endswith("# no heading\n```")
    assert [stem(word) for word in ("batches", "batching", "batched", "batch", "dies")] == ["batch"] * 4 + ["dies"]
