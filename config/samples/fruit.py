"""Serve application of the samples: a market that asks a stand for the price of its fruit.

Environment variables:
  FRUIT_VERSION          version in each response
  FRUIT_STARTUP_SECONDS  startup time of a stand
  FRUIT_ANSWER_SECONDS   latency of the market
  FRUIT_ROTTEN           error with which a stand fails to start, if set
user_config of MangoStand:
  price                  price of one mango
"""

import asyncio
import os
import platform
import time

from ray import serve
from starlette.requests import Request


@serve.deployment
class MangoStand:
    def __init__(self):
        time.sleep(float(os.environ.get("FRUIT_STARTUP_SECONDS", "0")))
        if rotten := os.environ.get("FRUIT_ROTTEN"):
            raise RuntimeError(rotten)
        self.price = 3

    def reconfigure(self, config: dict):
        self.price = config.get("price", self.price)

    def cost(self, amount: int) -> int:
        return self.price * amount


@serve.deployment
class FruitMarket:
    def __init__(self, stand):
        self.stand = stand
        self.version = os.environ.get("FRUIT_VERSION", "unknown")
        self.takes = float(os.environ.get("FRUIT_ANSWER_SECONDS", "0"))

    async def __call__(self, request: Request) -> dict:
        await asyncio.sleep(self.takes)
        cost = await self.stand.cost.remote(int(request.query_params.get("amount", "1")))
        return {"version": self.version, "cost": cost, "pod": platform.node()}


deployment_graph = FruitMarket.bind(MangoStand.bind())
