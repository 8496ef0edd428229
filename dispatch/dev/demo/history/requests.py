"""Draw the requests of the past: how many per weekday, at which hours, for which service. Pure."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from zoneinfo import ZoneInfo

from dispatch.dev.demo.history.customers import Customer

# Requests on an average day, Monday first, and their share by hour of the day.
PER_WEEKDAY = (34, 29, 27, 28, 31, 17, 11)
BY_HOUR = (1, 1, 1, 1, 1, 3, 7, 12, 15, 14, 12, 10, 9, 9, 8, 9, 10, 11, 9, 7, 5, 3, 2, 1)
# Service code → (weight, notes).
SERVICES: dict[str, tuple[int, tuple[str, ...]]] = {
    "ac-repair": (30, (
        "Blows warm air.", "Compressor hums but does not start.", "Water under the indoor unit.",
        "Thermostat is blank.", "Upstairs stays at 88 °F.",
    )),
    "plumbing": (22, (
        "Leak under the kitchen sink.", "Toilet keeps running.", "Low pressure since yesterday.",
        "Outdoor faucet drips.", "",
    )),
    "drain": (12, ("Shower drain is slow.", "Kitchen sink backs up.", "Smell from the floor drain.")),
    "water-heater": (11, ("No hot water.", "Pilot light goes out.", "Tank is twelve years old and rusty.")),
    "electrical": (13, (
        "Breaker trips when the oven is on.", "Half of the garage has no power.", "New outlet for a charger.",
    )),
    "furnace": (5, ("Clicks but won't light.", "Annual check.")),
    "inspection": (7, ("Before a sale; keys at the desk.", "Yearly check.", "")),
}  # fmt: skip
PRIORITIES, PRIORITY_WEIGHTS = (1, 2, 3), (3, 17, 80)


@dataclass(frozen=True)
class Request:
    """Describe one request. `at` is aware; `priority` as in `jobs.Priority`."""

    at: datetime
    service: str
    customer: Customer
    priority: int
    notes: str


def draw_requests(
    chance: random.Random, customers: Sequence[Customer], first: date, last: date, zone: ZoneInfo
) -> Iterator[Request]:
    """Yield the requests from `first` to `last`, inclusive, in order of time."""
    day = first
    while day <= last:
        count = max(3, round(chance.gauss(PER_WEEKDAY[day.weekday()], 4)))
        moments = []
        for hour in chance.choices(range(24), BY_HOUR, k=count):
            moments.append(time(hour, chance.randrange(60), chance.randrange(60)))
        for moment in sorted(moments):
            yield draw_request(chance, customers, datetime.combine(day, moment, zone))
        day += timedelta(days=1)


def draw_request(chance: random.Random, customers: Sequence[Customer], at: datetime, service: str = "") -> Request:
    """Draw one request. `service`: its code, or "" to draw that too."""
    if not service:
        service = chance.choices(list(SERVICES), [weight for weight, _ in SERVICES.values()])[0]
    (priority,) = chance.choices(PRIORITIES, PRIORITY_WEIGHTS)
    return Request(at, service, chance.choice(customers), priority, chance.choice(SERVICES[service][1]))
