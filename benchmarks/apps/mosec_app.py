"""The POST endpoint on Mosec: mosec_app.py --port PORT"""

from typing import Any

from mosec import Runtime, Server, Worker
from pydantic import BaseModel


class Item(BaseModel):
    name: str
    price: float


class Echo(Worker):
    def forward(self, data: Any) -> Any:
        return Item.model_validate(data).model_dump()


if __name__ == "__main__":
    server = Server()
    server.register_runtime({"/item": [Runtime(Echo, num=2)]})
    server.run()
