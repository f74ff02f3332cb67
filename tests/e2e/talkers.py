"""Chat models whose replicas are chosen by the conversation, or by a function."""

from collections.abc import AsyncIterator, Sequence

from app_toolkit import Deployment, DeploymentConfig, RoutedCall, RoutedReplica, Toolkit, replica_context
from app_toolkit.chat import ChatEvent, ChatRequest, TextEvent, openai_router


def first_or_last(call: RoutedCall, replicas: Sequence[RoutedReplica]) -> Sequence[str]:
    """Prefer the replica with the first or the last id, as the user asks."""
    ids = sorted(each.id for each in replicas)
    return [ids[0] if call.args[0].prompt == "first" else ids[-1]]


class Talker(Deployment, num_replicas=2, resources={"num_cpus": 0.1}):
    """A model that says which replica it is in."""

    async def chat(self, request: ChatRequest) -> AsyncIterator[ChatEvent]:
        yield TextEvent(str(replica_context().replica_id))


models = {
    "prefix": Talker.options(name="talker", routing_policy="prefix").bind(),
    "function": Talker.options(name="chosen", routing_policy="talkers:first_or_last").bind(),
}
app = Toolkit(title="Talkers", deployment=DeploymentConfig(name="talkers-api"))
app.include_router(openai_router(models), prefix="/v1")
