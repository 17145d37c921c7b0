"""The application of the samples: a market that asks a stand for the price of what it sells.

It is told by its environment:
  FRUIT_VERSION          what every answer names as its version
  FRUIT_STARTUP_SECONDS  how long a stand takes to open
  FRUIT_BROKEN           if it is set, no stand opens at all
"""

import os
import time

from ray import serve
from starlette.requests import Request


@serve.deployment
class MangoStand:
    def __init__(self):
        if os.environ.get("FRUIT_BROKEN"):
            raise RuntimeError("there are no mangoes in this version")
        time.sleep(float(os.environ.get("FRUIT_STARTUP_SECONDS", "0")))
        self.price = 1

    def reconfigure(self, config: dict) -> None:
        """Takes user_config, also while requests come in."""
        self.price = config.get("price", 1)

    def cost(self, amount: int) -> int:
        return self.price * amount


@serve.deployment
class FruitMarket:
    def __init__(self, stand):
        self.stand = stand
        self.version = os.environ.get("FRUIT_VERSION", "unknown")

    async def __call__(self, request: Request) -> dict:
        cost = await self.stand.cost.remote(int(request.query_params.get("amount", "1")))
        return {"version": self.version, "cost": cost}


deployment_graph = FruitMarket.bind(MangoStand.bind())
