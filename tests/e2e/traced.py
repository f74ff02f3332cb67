"""An ingress that calls a batch method, which sends an HTTP request."""

import asyncio
from typing import Annotated

import httpx
from fastapi import Depends
from opentelemetry.instrumentation.httpx import HTTPXClientInstrumentor

from app_toolkit import Deployment, DeploymentConfig, Toolkit, batch, replica_context

HTTPXClientInstrumentor().instrument()


class Model(Deployment, num_replicas=2):
    @batch(max_batch_size=2, batch_wait_timeout_s=0.05)
    async def predict(self, urls: list[str]) -> list[str]:
        async with httpx.AsyncClient(trust_env=False) as http:
            for url in dict.fromkeys(urls):
                if url:
                    (await http.get(url)).raise_for_status()
        return [replica_context().replica_id] * len(urls)

    async def wait(self, seconds: float) -> str:
        await asyncio.sleep(seconds)
        return replica_context().replica_id


model = Model.bind()
app = Toolkit(deployment=DeploymentConfig(name="web", max_ongoing_requests=1))


@app.get("/predict")
async def predict(model: Annotated[Model, Depends(model)], url: str = "") -> str:
    return await model.predict(url)


@app.get("/wait")
async def wait(model: Annotated[Model, Depends(model)], seconds: float) -> str:
    return await model.wait(seconds)
