"""Asks an HTTP service for several places at the same time: async tasks, typed params, retries."""

import asyncio
import json
import urllib.request
from dataclasses import dataclass
from enum import Enum

from pyoco import Flow, task


class Unit(Enum):
    CELSIUS = "celsius"
    FAHRENHEIT = "fahrenheit"


@dataclass
class Place:
    name: str
    latitude: float
    longitude: float


KYOTO = Place("Kyoto", 35.0, 135.8)


@task
async def ask(service: str, places: list[Place] = [KYOTO]):  # noqa: B006 - never changed
    async def one(place):
        print(f"asking for {place.name}")
        url = f"{service}?latitude={place.latitude}&longitude={place.longitude}"
        with await asyncio.to_thread(urllib.request.urlopen, url, timeout=10) as answer:
            return place.name, json.load(answer)["degrees"]

    return dict(await asyncio.gather(*map(one, places)))


# A service that is briefly away is asked again at once by the task ...
ask.task.retries = 2
ask.task.timeout_sec = 20


@task
def convert(ask, unit: Unit = Unit.CELSIUS):
    if unit is Unit.FAHRENHEIT:
        return {name: round(degrees * 9 / 5 + 32, 1) for name, degrees in ask.items()}
    return ask


flow = Flow("forecast") >> ask >> convert
# ... and if it stays away for longer, the fleet runs the whole flow again, up to three times.
flow.fleet = {"retry": {"max_attempts": 3, "base_seconds": 2}, "description": "The temperature at several places."}
