"""MiniLM on LitServe: minilm_lit.py PORT"""

import sys
from typing import Any

import litserve
from minilm import BATCH_SIZE, WAIT_S, TimedMiniLM
from pydantic import BaseModel


class Query(BaseModel):
    text: str


class Embedder(litserve.LitAPI):
    def setup(self, device: str) -> None:
        self.model = TimedMiniLM()

    def decode_request(self, request: Query) -> str:
        return request.text

    def batch(self, inputs: list[str]) -> list[str]:
        return list(inputs)

    def predict(self, texts: list[str]) -> list[dict[str, Any]]:
        return self.model(texts)

    def unbatch(self, output: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return output

    def encode_response(self, answer: dict[str, Any]) -> dict[str, Any]:
        return answer


if __name__ == "__main__":
    embedder = Embedder(api_path="/embed", max_batch_size=BATCH_SIZE, batch_timeout=WAIT_S)
    server = litserve.LitServer(embedder, accelerator="cpu", workers_per_device=1)
    server.run(host="127.0.0.1", port=int(sys.argv[1]), log_level="warning", generate_client_file=False)
