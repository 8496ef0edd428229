"""Define the behavior of each simulated phone, and build the simulator's configuration from the database."""

from __future__ import annotations

import random
from typing import Any

from dispatch.capacity.models import OutboundNumber, ProviderAccount
from dispatch.dev.demo import data
from dispatch.telephony import webhook_urls

Behaviour = dict[str, Any]


def _answer(*keys: tuple[str, float, float], weight: int = 1) -> Behaviour:
    """Answer after a moment and press each (key, between these seconds after answering)."""
    pressed = [{"key": key, "after": [low, high]} for key, low, high in keys]
    return {"do": "answer", "after": [0.5, 2], "keys": pressed, "weight": weight}


def _mix(*of: Behaviour) -> Behaviour:
    return {"do": "mix", "of": list(of)}


_ACCEPTS, _DECLINES = ("1", 1.5, 3.0), ("2", 1.5, 3.0)
_IGNORES: Behaviour = {"do": "ring", "weight": 1}
_HANGS_UP: Behaviour = {"do": "answer", "after": [1, 2], "hang_up": {"after": [2, 3]}}
_BUSY: Behaviour = {"do": "busy", "after": [0.5, 1]}

# By a technician's habit (`data.Person.phone_habit`). Seeded: a phone's n-th call always ends the same way.
BEHAVIOURS: dict[str, Behaviour] = {
    "eager": _mix(_answer(_ACCEPTS, weight=9), _IGNORES),
    "friendly": _mix(_answer(_ACCEPTS, weight=7), _answer(_DECLINES, weight=2), _IGNORES),
    "picky": _mix(_answer(_ACCEPTS, weight=3), _answer(_DECLINES, weight=4), {**_IGNORES, "weight": 3}),
    "listens_twice": _answer(("*", 2.0, 3.0), ("1", 5.0, 6.0)),
    "declines": _answer(_DECLINES),
    "ignores": {"do": "ring"},
    "answers_late": {"do": "ring"},  # then calls back or texts (`late_answers`)
    "hangs_up": _mix({**_HANGS_UP, "weight": 4}, _answer(_ACCEPTS)),
    "busy": _mix({**_BUSY, "weight": 3}, _answer(_ACCEPTS)),
    "voicemail": {"do": "voicemail", "after": [2, 3], "hang_up": {"after": 20}},
    "sends_away": {"do": "reject", "after": [1, 2]},
}


def handsets() -> dict[str, Behaviour]:
    """Map the number of every demo technician to a behavior. Any other number is friendly."""
    people = (*data.TECHNICIANS, *data.OTHER_TECHNICIANS)
    return {"default": BEHAVIOURS["friendly"]} | {
        person.phone: BEHAVIOURS[person.phone_habit] for person in people
    }


def drawn_handsets(seed: int, calls: int = 40) -> dict[str, list[Behaviour]]:
    """Return `handsets` with random choices resolved: each phone's first, second, … call follows from `seed`."""
    resolved = {}
    for phone, behaviour in handsets().items():
        if phone == "default":
            continue
        chance = random.Random(f"{seed}:{phone}")
        resolved[phone] = [_drawn(behaviour, chance) for _ in range(calls)]
    return resolved


def _drawn(behaviour: Behaviour, chance: random.Random) -> Behaviour:
    if behaviour["do"] != "mix":
        return behaviour
    weights = [float(choice.get("weight", 1)) for choice in behaviour["of"]]
    return dict(chance.choices(behaviour["of"], weights)[0])


def accounts() -> list[dict[str, Any]]:
    """Return the active provider accounts with their caller numbers, merging accounts with the same SID."""
    by_sid: dict[str, dict[str, Any]] = {}
    for account in ProviderAccount.objects.filter(provider="twilio", is_active=True).order_by("pk"):
        described = by_sid.setdefault(
            account.account_sid,
            {
                "sid": account.account_sid,
                "auth_token": account.auth_token,
                "calls_per_second": account.calls_per_second,
                "numbers": [],
            },
        )
        known = {number["number"] for number in described["numbers"]}
        for number in OutboundNumber.objects.filter(account=account).select_related("account").order_by("pk"):
            if str(number.phone) not in known:
                described["numbers"].append(_number(number))
    return list(by_sid.values())


def _number(number: OutboundNumber) -> dict[str, str]:
    """Return a caller number with its webhook URLs for calls and texts."""
    return {
        "number": str(number.phone),
        "voice_url": webhook_urls.number_webhook(number, "voice"),
        "sms_url": webhook_urls.number_webhook(number, "sms"),
        "status_callback": webhook_urls.number_webhook(number, "status"),
    }


def simulator_config() -> dict[str, Any]:
    """Build the configuration that `python -m dispatch.dev.simulator --config` reads."""
    return {"accounts": accounts(), "handsets": handsets()}
