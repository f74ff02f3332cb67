"""Two ingresses: the app's own, which greets and counts, and `chat`, whose two replicas hold the connections.

app-toolkit run examples/hello/app.py
app-toolkit dev examples/hello/app.py
"""

from pathlib import Path

from fastapi.responses import HTMLResponse

from app_toolkit import DeploymentConfig, Toolkit
from hello import chat, greetings

PAGE = Path(__file__).with_name("page.html").read_text("utf-8")

app = Toolkit(title="Hello", summary="One endpoint of each kind, on two ingresses.")
app.include_router(greetings.router)
app.include_router(chat.router, deployment=DeploymentConfig(name="chat", num_replicas=2))


@app.get("/", include_in_schema=False)
async def page() -> HTMLResponse:
    return HTMLResponse(PAGE)
