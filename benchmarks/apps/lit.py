"""The POST endpoint on LitServe: lit.py PORT"""

import sys
from typing import Any

import litserve
from pydantic import BaseModel


class Item(BaseModel):
    name: str
    price: float


class Echo(litserve.LitAPI):
    def setup(self, device: str) -> None: ...

    def decode_request(self, request: Item) -> Item:
        return request

    def predict(self, item: Item) -> Item:
        return item

    def encode_response(self, item: Item) -> dict[str, Any]:
        return item.model_dump()


if __name__ == "__main__":
    server = litserve.LitServer(Echo(api_path="/item"), accelerator="cpu", workers_per_device=2)
    server.run(host="127.0.0.1", port=int(sys.argv[1]), log_level="warning", generate_client_file=False)
