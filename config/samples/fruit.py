"""The application of the samples: a market that asks a stand for the price of what it sells.

It is told by its environment:
  FRUIT_VERSION          what every answer names as its version
  FRUIT_STARTUP_SECONDS  how long a stand takes to open
"""

import os
import time

from ray import serve
from starlette.requests import Request

PRICE = 3


@serve.deployment
class MangoStand:
    def __init__(self):
        time.sleep(float(os.environ.get("FRUIT_STARTUP_SECONDS", "0")))

    def cost(self, amount: int) -> int:
        return PRICE * amount


@serve.deployment
class FruitMarket:
    def __init__(self, stand):
        self.stand = stand
        self.version = os.environ.get("FRUIT_VERSION", "unknown")

    async def __call__(self, request: Request) -> dict:
        cost = await self.stand.cost.remote(int(request.query_params.get("amount", "1")))
        return {"version": self.version, "cost": cost}


deployment_graph = FruitMarket.bind(MangoStand.bind())
