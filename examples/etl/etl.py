"""Reads orders from a CSV file, drops bad rows and adds up what each customer has paid.

The folder has a requirements.txt: the runners get its libraries, the worker itself does not.
"""

import csv
import logging
from collections import Counter
from dataclasses import dataclass
from datetime import date
from decimal import Decimal, InvalidOperation
from pathlib import Path

from pyoco import Flow, task
from tabulate import tabulate

logger = logging.getLogger(__name__)


@dataclass
class Order:
    order: int
    day: date
    customer: str
    amount: Decimal


@task
def extract(file: str = "orders.csv"):
    with (Path(__file__).parent / file).open(newline="") as lines:
        return list(csv.DictReader(lines))


@task
def clean(extract):
    orders = []
    for row in extract:
        try:
            amount = Decimal(row["amount"])
        except InvalidOperation:
            logger.warning("order %s is left out: its amount is %r", row["order"], row["amount"])
            continue
        orders.append(Order(int(row["order"]), date.fromisoformat(row["day"]), row["customer"], amount))
    return orders


@task
def load(clean, since: date | None = None):
    totals: Counter[str] = Counter()
    for order in clean:
        if since is None or order.day >= since:
            totals[order.customer] += order.amount
    print(tabulate(sorted(totals.items()), headers=["customer", "paid"]))
    return dict(sorted(totals.items()))


flow = Flow("etl") >> extract >> clean >> load
flow.fleet = {"retry": 2, "description": "What each customer has paid, from a CSV file."}
