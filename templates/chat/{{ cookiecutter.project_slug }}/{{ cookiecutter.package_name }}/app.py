"""{{ cookiecutter.project_name }}: the chat page, and the routers of the model."""

from pathlib import Path

from app_toolkit import Toolkit
from app_toolkit.chat import ai_sdk_router, openai_router
{%- if cookiecutter.frontend == "react" %}
from fastapi import HTTPException
{%- endif %}
from fastapi.responses import FileResponse
from fastapi.staticfiles import StaticFiles

from {{ cookiecutter.package_name }}.model import Model

STATIC = Path(__file__).parent / "static"

models = {"{{ cookiecutter.project_slug }}": Model.bind()}

app = Toolkit(title="{{ cookiecutter.project_name }}")
app.include_router(ai_sdk_router(models), prefix="/api/chat", tags=["chat"])
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
async def page() -> FileResponse:
    return FileResponse(STATIC / "index.html")
{%- endif %}
