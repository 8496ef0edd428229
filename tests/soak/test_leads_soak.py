"""Twenty thousand leads due in one second, over fifty lines, while dialers are killed and Redis is flushed."""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter
from contextlib import ExitStack
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection

from dispatch.core import clock
from dispatch.leads.models import Lead
from dispatch.telephony.models import Call
from tests import factories
from tests.conftest import forget_redis
from tests.leads.floor import Floor
from tests.leads.test_kills import LOOPS, QUICK
from tests.phones import Simulator, busy
from tests.processes import Process, environment

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600)]

LEADS = int(os.environ.get("SOAK_LEADS", "20000"))
NUMBERS, LINES = 5, 10
DIALERS = 2
LONGEST_S = 3000.0


def test_twenty_thousand_in_one_second_over_fifty_lines(sim: Simulator, app_url: str, settings: Any) -> None:
    settings.SIMULATOR_URL = sim.base_url
    sim.others_will(busy(after=0.2))
    floor = Floor("twilio", lines=LINES, account_sid=sim.account_sid, auth_token=sim.auth_token)
    numbers = [floor.number] + [
        factories.number(floor.organization, account=floor.account, pool=floor.pool, max_channels=LINES)
        for _ in range(NUMBERS - 1)
    ]
    floor.campaign.max_attempts = 1
    floor.campaign.save()
    for _ in range(LEADS // 1000):
        floor.add_many(1000, at=clock.now() + timedelta(seconds=20))
    env = environment(connection.settings_dict["NAME"], SIMULATOR_URL=sim.base_url, **QUICK)
    chance = random.Random(7)
    with ExitStack() as stack:
        dialers = [Process(("dispatcher", "--only", LOOPS), env) for _ in range(DIALERS)]
        stack.callback(lambda: [dialer.kill() for dialer in dialers])
        until, trouble_at = time.monotonic() + LONGEST_S, time.monotonic() + 40
        while Lead.objects.exclude(status="finished").exists():
            assert time.monotonic() < until, floor.outcomes()
            if time.monotonic() > trouble_at:
                victim = chance.randrange(DIALERS)
                dialers[victim].kill()
                dialers[victim] = Process(("dispatcher", "--only", LOOPS), env)
                if chance.random() < 0.3:
                    forget_redis()
                trouble_at = time.monotonic() + chance.uniform(10, 30)
            threading.Event().wait(1.0)
    outcomes = floor.outcomes()
    assert sum(outcomes.values()) == LEADS
    created = {phone: found["created"] for phone, found in sim.get("/control/creates").items()}
    placed = Counter(
        str(phone) for phone in Call.objects.exclude(status="not_placed").values_list("to_phone", flat=True)
    )
    assert {phone: n for phone, n in created.items() if n != placed[phone]} == {}
    assert max(created.values()) == 1
    for number in numbers:
        assert sim.max_simultaneous(str(number.phone)) <= LINES
    assert not Call.objects.filter(ended_at=None).exists()
