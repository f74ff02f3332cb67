"""{{ cookiecutter.project_name }}: the chat page, and the routers of the model."""

{% if cookiecutter.frontend == "built-in" -%}
import os
import secrets
{% endif -%}
from pathlib import Path
{%- if cookiecutter.frontend == "built-in" %}
from typing import Annotated
{%- endif %}

from app_toolkit import Toolkit
{%- if cookiecutter.frontend == "react" %}
from app_toolkit.chat import ai_sdk_router, openai_router
from fastapi import HTTPException
{%- else %}
from app_toolkit.chat import SQLiteConversationStore, ai_sdk_router, conversations_router, openai_router
from fastapi import Cookie, Request
{%- endif %}
from fastapi.responses import FileResponse
from fastapi.staticfiles import StaticFiles

from {{ cookiecutter.package_name }}.model import Model

STATIC = Path(__file__).parent / "static"
{%- if cookiecutter.frontend == "built-in" %}
DATABASE = Path.home() / "{{ cookiecutter.project_slug }}.db"
"""The stored conversations, unless the environment has `CHAT_DATABASE`."""
{%- endif %}

models = {"{{ cookiecutter.project_slug }}": Model.bind()}

# With the shared log, every replica can continue an answer. `run` and `deploy` start it.
app = Toolkit(title="{{ cookiecutter.project_name }}", stream_log="shared")
{%- if cookiecutter.frontend == "react" %}
app.include_router(ai_sdk_router(models), prefix="/api/chat", tags=["chat"])
{%- else %}
store = SQLiteConversationStore(os.environ.get("CHAT_DATABASE") or DATABASE)


async def visitor(visitor: Annotated[str, Cookie(min_length=1)]) -> str:
    """Return the user: the browser that has opened the page. Replace this by your login."""
    return visitor


app.include_router(ai_sdk_router(models, conversations=store, user=visitor), prefix="/api/chat", tags=["chat"])
app.include_router(conversations_router(store, user=visitor), prefix="/api/conversations", tags=["conversations"])
{%- endif %}
app.include_router(openai_router(models), prefix="/v1", tags=["openai"])
{%- if cookiecutter.frontend == "react" %}
app.mount("/static", StaticFiles(directory=STATIC, check_dir=False), name="static")  # it exists after the build


@app.get("/", include_in_schema=False)
async def page() -> FileResponse:
    index = STATIC / "index.html"
    if not index.is_file():
        raise HTTPException(503, "The page is not built: run `npm install && npm run build` in the folder frontend.")
    return FileResponse(index)
{%- else %}
app.mount("/static", StaticFiles(directory=STATIC), name="static")


@app.get("/", include_in_schema=False)
async def page(request: Request) -> FileResponse:
    response = FileResponse(STATIC / "index.html")
    if not request.cookies.get("visitor"):
        secure = request.url.scheme == "https"
        response.set_cookie("visitor", secrets.token_urlsafe(16), max_age=31_536_000, httponly=True, secure=secure)
    return response
{%- endif %}
