"""A chat with an assistant that answers from the documentation of this project. It works without a network.

app-toolkit dev examples/chat/app.py
app-toolkit run examples/chat/app.py
"""

from pathlib import Path

from fastapi.responses import FileResponse
from fastapi.staticfiles import StaticFiles

from app_toolkit import Toolkit
from app_toolkit.chat import ai_sdk_router, openai_router
from app_toolkit.streaming import stream_router
from chat.assistant import Assistant

HERE = Path(__file__).parent
STATIC = HERE / "static"

assistant = Assistant.bind(str(HERE.parents[1] / "docs"))

app = Toolkit(title="Chat", summary="A chat page, and the same assistant for the clients of other chats.")
app.include_router(ai_sdk_router({"assistant": assistant}), prefix="/api/chat", tags=["chat"])
app.include_router(openai_router({"assistant": assistant}), prefix="/v1", tags=["openai"])
app.include_router(stream_router(), prefix="/streams", tags=["streams"])
app.mount("/static", StaticFiles(directory=STATIC), name="static")


@app.get("/", include_in_schema=False)
async def page() -> FileResponse:
    return FileResponse(STATIC / "index.html")
