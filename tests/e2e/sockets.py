"""A chat over WebSockets: two replicas of the router, one of the model, and one of the log."""

import asyncio
from collections.abc import AsyncIterator

from fastapi import Depends

from app_toolkit import Deployment, DeploymentConfig, Toolkit
from app_toolkit.chat import ChatEvent, ChatRequest, TextEvent, api_keys, websocket_router
from app_toolkit.streaming import StreamLogDeployment

CPUS = {"num_cpus": 0.1}


class Counter(Deployment, name="counter", resources=CPUS, max_ongoing_requests=100):
    async def chat(self, request: ChatRequest) -> AsyncIterator[ChatEvent]:
        for number in range(int(request.prompt)):
            await asyncio.sleep(0.01)
            yield TextEvent(f"{number} ")


keys = api_keys({"ada": "ada-0123456789abcdef", "bob": "bob-0123456789abcdef"})
router = websocket_router(Counter.bind(), log=StreamLogDeployment.bind())
app = Toolkit(deployment=DeploymentConfig(name="front", num_replicas=2, resources=CPUS))
app.include_router(router, prefix="/ws", dependencies=[Depends(keys)])
