"""What the WebSocket suite talks to: what comes goes back."""

from fastapi import FastAPI, WebSocket

app = FastAPI()


@app.websocket("/")
async def echo(ws: WebSocket) -> None:
    await ws.accept()
    while (message := await ws.receive())["type"] == "websocket.receive":
        if message.get("text") is not None:
            await ws.send_text(message["text"])
        else:
            await ws.send_bytes(message["bytes"])
