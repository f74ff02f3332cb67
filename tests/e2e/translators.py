"""Chat models that share replicas: each replica loads the models that requests name."""

from collections.abc import AsyncIterator

from app_toolkit import Deployment, DeploymentConfig, Toolkit, multiplexed, replica_context
from app_toolkit.chat import ChatEvent, ChatRequest, TextEvent, openai_router

NAMES = [f"translator-{number}" for number in range(6)]


class Translators(Deployment, num_replicas=2, resources={"num_cpus": 0.1}):
    @multiplexed(max_models=len(NAMES))
    async def model(self, name: str) -> AsyncIterator[str]:
        yield name.upper()

    async def chat(self, request: ChatRequest) -> AsyncIterator[ChatEvent]:
        async with self.model(request.model) as model:
            yield TextEvent(f"{model} of {replica_context().replica_id}")


translators = Translators.bind()


app = Toolkit(title="Translators", deployment=DeploymentConfig(name="translators-api"))
app.include_router(openai_router(dict.fromkeys(NAMES, translators)), prefix="/v1")
