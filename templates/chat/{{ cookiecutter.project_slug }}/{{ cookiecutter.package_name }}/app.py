"""{{ cookiecutter.project_name }}: the chat page, and the routers of the model."""

import os
import secrets
from pathlib import Path
from typing import Annotated

from app_toolkit import Toolkit
from app_toolkit.chat import (
    FileStore,
    SQLConversationStore,
    ai_sdk_router,
    conversations_router,
    files_router,
    openai_router,
)
from fastapi import Cookie,{% if cookiecutter.frontend == "react" %} HTTPException,{% endif %} Request
from fastapi.responses import FileResponse
from fastapi.staticfiles import StaticFiles

from {{ cookiecutter.package_name }}.model import Model

STATIC = Path(__file__).parent / "static"
DATABASE = Path.home() / "{{ cookiecutter.project_slug }}.db"
"""The stored conversations, unless the environment has `CHAT_DATABASE`."""
FILES = Path.home() / "{{ cookiecutter.project_slug }}-files"
"""The files that users send, unless the environment has `CHAT_FILES`."""

SECURITY = {
    "content-security-policy": "default-src 'self'; img-src 'self' data:; base-uri 'none'; frame-ancestors 'none'",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}
"""The page loads and runs nothing from elsewhere."""

models = {"{{ cookiecutter.project_slug }}": Model.bind()}

app = Toolkit(title="{{ cookiecutter.project_name }}")
store = SQLConversationStore(os.environ.get("CHAT_DATABASE") or DATABASE)
files = FileStore(os.environ.get("CHAT_FILES") or FILES, url="/api/files")


async def visitor(visitor: Annotated[str, Cookie(min_length=1)]) -> str:
    """Return the user: the browser that has opened the page. Replace this by your login."""
    return visitor


app.include_router(
    ai_sdk_router(models, conversations=store, files=files, user=visitor, version=6), prefix="/api/chat", tags=["chat"]
)
app.include_router(
    conversations_router(store, files=files, user=visitor), prefix="/api/conversations", tags=["conversations"]
)
app.include_router(files_router(files, user=visitor), prefix="/api/files", tags=["files"])
app.include_router(openai_router(models), prefix="/v1", tags=["openai"])
{%- if cookiecutter.frontend == "react" %}
app.mount("/static", StaticFiles(directory=STATIC, check_dir=False), name="static")  # it exists after the build
{%- else %}
app.mount("/static", StaticFiles(directory=STATIC), name="static")
{%- endif %}


@app.get("/", include_in_schema=False)
async def page(request: Request) -> FileResponse:
{%- if cookiecutter.frontend == "react" %}
    if not (STATIC / "index.html").is_file():
        raise HTTPException(503, "The page is not built: run `npm install && npm run build` in the folder frontend.")
{%- endif %}
    response = FileResponse(STATIC / "index.html", headers={**SECURITY, "cache-control": "no-cache"})
    if not request.cookies.get("visitor"):
        secure = request.url.scheme == "https"
        response.set_cookie("visitor", secrets.token_urlsafe(16), max_age=31_536_000, httponly=True, secure=secure)
    return response
