"""An app that reveals its secrets wherever it can: in records, output, exceptions, and failures of its replicas."""

import logging
import os
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Depends

from app_toolkit import Deployment, DeploymentConfig, Toolkit

log = logging.getLogger("vault")
SICK = Path(os.environ.get("VAULT_SICK", "/"))


class Store(Deployment, resources={"num_cpus": 0.1}):
    def __init__(self, argument: str, api_key: str) -> None:
        self.argument = argument
        self.api_key = api_key
        self.config: dict[str, Any] = {}
        if SICK.is_file():
            raise RuntimeError(f"the constructor has {os.environ['STORE_CODE']}, {self.argument} and {api_key}")

    def reconfigure(self, config: dict[str, Any]) -> None:
        self.config = config

    def check_health(self) -> None:
        if SICK.is_file():
            raise RuntimeError(f"it is ill with {self.config}")

    async def read(self) -> str:
        log.error("it reads with %s", self.config)
        print("it prints", os.environ["STORE_CODE"], self.argument, self.api_key)
        raise ValueError(f"it cannot read with {self.config} and {dict(os.environ)}")


store = Store.bind(os.environ.get("VAULT_PASSWORD", ""), api_key="argument-in-the-code-7")
shelf = APIRouter()


@shelf.get("/read")
async def read(store: Annotated[Store, Depends(store)]) -> str:
    return await store.read()


app = Toolkit()
app.include_router(shelf, deployment=DeploymentConfig(name="shelf", resources={"num_cpus": 0.1}))
