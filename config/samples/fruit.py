"""The application of the samples: a market that asks a stand for the price of what it sells.

It is told by its environment:
  FRUIT_VERSION          what every answer names as its version
  FRUIT_STARTUP_SECONDS  how long a stand takes to open
  FRUIT_ANSWER_SECONDS   how long the market takes for an answer
  FRUIT_ROTTEN           why a stand can't open, if it can't
and by the user_config of MangoStand:
  price                  what one mango costs
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
