"""A request that crosses three deployments and logs everywhere; an app with its own logging."""

import asyncio
import logging
import logging.config
import sys
from typing import Annotated

from fastapi import BackgroundTasks, Depends, FastAPI, Request

from app_toolkit import Deployment, Toolkit, batch, remote

logger = logging.getLogger("shop")
logger.debug("imported")
SMALL = {"num_cpus": 0.1}


class Till(Deployment, resources=SMALL):
    @batch(max_batch_size=4, batch_wait_timeout_s=0.01)
    async def pay(self, prices: list[int]) -> list[int]:
        logger.info("a batch of %d", len(prices))
        return prices

    def receipt(self) -> None:
        print("a receipt")


class Stock(Deployment, resources=SMALL):
    def __init__(self, till: Till) -> None:
        self.till = till

    async def take(self, price: int) -> int:
        logger.warning("taken from the stock")
        await remote(self.till.receipt)
        return await self.till.pay(price)


stock = Stock.bind(Till.bind().handle)
app = Toolkit(title="Logged")


@app.get("/buy/{price}")
async def buy(price: int, stock: Annotated[Stock, Depends(stock)], tasks: BackgroundTasks) -> int:
    tasks.add_task(logger.info, "in a background task")
    logger.info("asked for %d", price)
    await asyncio.to_thread(logger.info, "on a thread")
    return await stock.take(price)


@app.post("/echo")
async def echo(request: Request) -> None:
    text = (await request.body()).decode()
    logger.info("asked for %s", text)
    print(text, file=sys.stderr)


CONFIG = {
    "version": 1,
    "formatters": {"own": {"format": "%(deployment)s [%(request_id)s] %(message)s"}},
    "handlers": {"file": {"class": "logging.FileHandler", "formatter": "own"}},
    "loggers": {"shop": {"handlers": ["file"], "level": "DEBUG", "propagate": False}},
}
"""A logging configuration, without the name of the file."""

# Without a handler that shows anything, and without the propagation to the root logger.
logging.config.dictConfig(
    {
        "version": 1,
        "disable_existing_loggers": False,
        "handlers": {"nothing": {"class": "logging.NullHandler"}},
        "loggers": {"alone": {"handlers": ["nothing"], "level": "DEBUG", "propagate": False}},
    }
)
alone = FastAPI(title="alone")


@alone.get("/")
def log_alone() -> None:
    logging.getLogger("alone").info("heard")
    logging.getLogger("alone").debug("below the level")
