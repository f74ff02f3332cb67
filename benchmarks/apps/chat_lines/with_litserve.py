"""The backend of a chat page with LitServe, which serves the model. The rest is that of `with_fastapi.py`.

python with_litserve.py PORT        # the model
uvicorn with_litserve:app           # the backend; MODEL_URL is the address of the model
"""

import json
import os
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Sequence

import httpx
import litserve
import models
import with_fastapi


class Assistant(litserve.LitAPI):
    def setup(self, device: str) -> None:
        self.answer = models.answer

    async def decode_request(self, request: dict[str, list[str]]) -> list[str]:
        return request["texts"]

    async def predict(self, texts: list[str]) -> AsyncIterator[models.Event]:
        async for event in self.answer(texts):
            yield event

    async def encode_response(self, output: AsyncIterator[models.Event]):  # LitServe refuses its type
        async for event in output:
            yield f"{json.dumps(event)}\n"


async def answer(texts: Sequence[str]) -> AsyncGenerator[models.Event, None]:
    """Yield the events of the model, which runs in a process of LitServe."""
    url = f"{os.environ['MODEL_URL']}/predict"
    async with httpx.AsyncClient(timeout=60) as client, client.stream("POST", url, json={"texts": texts}) as response:
        response.raise_for_status()
        async for line in response.aiter_lines():
            yield tuple(json.loads(line))


with_fastapi.answer = answer
app = with_fastapi.app

if __name__ == "__main__":
    server = litserve.LitServer(Assistant(stream=True, enable_async=True), accelerator="cpu")
    server.run(host="127.0.0.1", port=int(sys.argv[1]), generate_client_file=False)
