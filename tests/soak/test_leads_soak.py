"""Twenty thousand leads due in one second, over fifty lines, while dialers are killed and Redis is flushed."""

from __future__ import annotations

import os
import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection

from dispatch.core import clock
from dispatch.leads.models import Lead
from dispatch.telephony.models import Call
from tests.conftest import forget_redis
from tests.harness.leads import Floor
from tests.leads.test_kills import LOOPS, QUICK, complains_of_nothing_but_the_kill
from tests.phones import Simulator, busy
from tests.support import factories
from tests.support.histories import history_is_legal
from tests.support.processes import Process, environment
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600)]

LEADS = int(os.environ.get("SOAK_LEADS", "20000"))
NUMBERS, LINES = 5, 10
DIALERS, WEBS = 2, 2  # a web process hears the ends of some forty calls a second
LONGEST_S = 3000.0


@contextmanager
def site(sim: Simulator) -> Iterator[list[Process]]:
    """Web processes for the webhooks, and dialers; all of them end with the block."""
    with ExitStack() as stack:
        door = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=2048))
        url = f"http://127.0.0.1:{door.getsockname()[1]}"
        env = environment(
            connection.settings_dict["NAME"], SIMULATOR_URL=sim.base_url, **{**QUICK, "PUBLIC_BASE_URL": url}
        )
        for _ in range(WEBS):
            web = Process(("web", "--fd", str(door.fileno())), env, pass_fds=(door.fileno(),))
            stack.callback(web.kill)
        dialers: list[Process] = []
        stack.callback(lambda: [dialer.kill() for dialer in dialers])
        dialers += [Process(("dispatcher", "--only", LOOPS), env) for _ in range(DIALERS)]
        yield dialers


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
    due = clock.now() + timedelta(seconds=30)
    for _ in range(LEADS // 1000):
        floor.add_many(1000, at=due)
    chance, troubles = random.Random(7), Counter[str]()
    waiting = Lead.objects.exclude(status="finished")
    with site(sim) as dialers:
        wait_until(lambda: Call.objects.exists())
        began = time.monotonic()
        until, trouble_at = began + LONGEST_S, began + chance.uniform(5, 15)
        while left := waiting.count():
            print(f"{time.monotonic() - began:.0f} s: {left} left, {dict(troubles)}", flush=True)  # noqa: T201
            assert time.monotonic() < until, floor.outcomes()
            if time.monotonic() > trouble_at:
                victim = chance.randrange(DIALERS)
                dialers[victim].kill()
                dialers[victim] = dialers[victim].again()
                troubles["killed"] += 1
                if chance.random() < 0.3:
                    forget_redis()
                    troubles["flushed"] += 1
                trouble_at = time.monotonic() + chance.uniform(10, 30)
            threading.Event().wait(1.0)
    complains_of_nothing_but_the_kill(sim)
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
    print(history_is_legal())  # noqa: T201
