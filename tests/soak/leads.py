"""What happens to a site that calls leads: faults by chance, and people who opt out meanwhile."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import requests
from django.conf import settings
from django.db import connection
from redis.connection import parse_url

from dispatch.leads.models import Lead
from tests.core.outages import OwnValkey, own_valkey
from tests.phones import Simulator
from tests.soak.reply_cuts import ReplyCutter
from tests.soak.site import HURRIED, WEB_2, Site, listening_site
from tests.support.database import crash_server, restart_server
from tests.support.processes import database_address
from tests.support.waiting import wait_until

DIALERS, WEBS = ("dispatcher 1", "dispatcher 2"), ("web", WEB_2)
# Short enough to see in minutes what takes its time in life, beside HURRIED.
QUICK = {
    "LEADS_HEARTBEAT_S": "1", "LEADS_WORKER_DEAD_S": "5", "LEADS_CLAIM_LEASE_S": "5", "LEADS_RETRY_DELAY_S": "5",
    "LEADS_WORKERS_INTERVAL_S": "1", "LEADS_NEAR_INTERVAL_S": "5", "LEADS_STALE_INTERVAL_S": "2",
    "LEADS_UNTOLD_S": "5",
}  # fmt: skip
# How often each happens, beside the others.
LIKELY = {
    "a dialer is killed": 4, "both dialers are killed": 1, "a web process is killed": 3,
    "both web processes are killed": 1, "Redis is killed": 2, "Redis is flushed": 2, "PostgreSQL is killed": 2,
    "replies of Redis are cut": 5, "replies of PostgreSQL are cut": 3, "replies to commits are cut": 3,
    "replies to creates are cut": 4, "callbacks are lost": 2, "callbacks come twice": 2, "callbacks come late": 2,
}  # fmt: skip


class LeadSite:
    """The processes, their Redis, and the proxies through which they reach Redis and PostgreSQL."""

    def __init__(
        self, site: Site, redis: OwnValkey, redis_proxy: ReplyCutter, database_proxy: ReplyCutter
    ) -> None:
        self.site, self.redis = site, redis
        self.redis_proxy, self.database_proxy = redis_proxy, database_proxy


@contextmanager
def lead_site(sim: Simulator, folder: Path) -> Iterator[LeadSite]:
    """Two dispatchers and two web processes at one socket, up and ready."""
    with ExitStack() as stack:
        stack.enter_context(many_connections())
        redis = stack.enter_context(own_valkey(folder))
        redis_proxy = stack.enter_context(ReplyCutter(parse_url(redis.url)["path"]))
        database_proxy = stack.enter_context(ReplyCutter(database_address()))
        name = connection.settings_dict["NAME"]
        env = {
            **HURRIED, **QUICK,
            "REDIS_URL": f"redis://127.0.0.1:{redis_proxy.port}/0",
            "DATABASE_URL": f"postgresql://postgres@127.0.0.1:{database_proxy.port}/{name}",
        }  # fmt: skip
        site = stack.enter_context(listening_site(sim, redis, (*WEBS, *DIALERS), env))
        yield LeadSite(site, redis, redis_proxy, database_proxy)


@contextmanager
def many_connections() -> Iterator[None]:
    """Restart the embedded PostgreSQL so that two busy dispatchers and two web processes fit (docs: scaling)."""
    if not settings.EMBEDDED_POSTGRES:
        yield
        return
    with connection.cursor() as cursor:
        cursor.execute("ALTER SYSTEM SET max_connections = 300")
    crash_server()
    restart_server()
    try:
        yield
    finally:
        with connection.cursor() as cursor:
            cursor.execute("ALTER SYSTEM RESET max_connections")


class LeadTroubles:
    """`happen()` does one thing by chance, waits a moment, and starts again what does not run.

    Every kind happens once before any happens twice.
    """

    def __init__(self, here: LeadSite, sim: Simulator, rng: random.Random) -> None:
        self._here, self._sim, self._rng = here, sim, rng
        self._moment = threading.Event()  # never set: only its waiting is wanted
        self._likely = dict(LIKELY)
        if not settings.EMBEDDED_POSTGRES:  # a server that was given is not ours to stop
            del self._likely["PostgreSQL is killed"]
        self.seen: Counter[str] = Counter()

    def happen(self) -> None:
        left = [kind for kind in self._likely if not self.seen[kind]] or list(self._likely)
        what = self._rng.choices(left, weights=[self._likely[kind] for kind in left])[0]
        self.seen[what] += 1
        self._do(what)
        self._moment.wait(self._rng.uniform(0.0, 2.0))
        self._here.site.revive()

    def end(self) -> None:
        """End what lasts: cuts and faults of the provider."""
        self._here.redis_proxy.cut(0)
        self._here.database_proxy.cut(0)
        self._sim.heal()
        self._here.site.revive()

    def _do(self, what: str) -> None:
        here, sim, rng = self._here, self._sim, self._rng
        match what:
            case "a dialer is killed":
                here.site.kill(rng.choice(DIALERS))
            case "both dialers are killed":
                here.site.kill(*DIALERS)
            case "a web process is killed":
                here.site.kill(rng.choice(WEBS))
            case "both web processes are killed":
                here.site.kill(*WEBS)
            case "Redis is killed":
                here.redis.kill()
                self._moment.wait(rng.uniform(0.0, 3.0))
                here.redis.start()
            case "Redis is flushed":
                here.redis.client().flushall()
            case "PostgreSQL is killed":
                crash_server()
                self._moment.wait(rng.uniform(0.0, 3.0))
                restart_server()
            case "replies of Redis are cut":
                here.redis_proxy.cut(rng.randint(1, 30), b"EVALSHA")
            case "replies of PostgreSQL are cut":
                here.database_proxy.cut(rng.randint(1, 10))
            case "replies to commits are cut":
                here.database_proxy.cut(rng.randint(1, 10), b"COMMIT")
            case "replies to creates are cut":
                sim.fault(rng.choice(["reset_after", "reset_before", "error_500"]), times=rng.randint(1, 10))
            case "callbacks are lost":
                sim.lose_callbacks(times=rng.randint(1, 5))
            case "callbacks come twice":
                sim.duplicate_callbacks(times=rng.randint(1, 50))
            case "callbacks come late":
                sim.delay_callbacks(rng.uniform(1, 20), times=rng.randint(1, 20))
            case _:
                raise AssertionError(what)


class OptOuts:
    """People who opt out by API and by text, some of them while their phone rings or they talk.

    `acknowledged` has the moments (Unix time) at which the response to a phone's opt-out had arrived.
    """

    def __init__(self, site: Site, sim: Simulator, key: str, number: str, rng: random.Random) -> None:
        self._site, self._sim, self._key, self._number, self._rng = site, sim, key, number, rng
        self._asked: set[str] = set()
        self.acknowledged: dict[str, float] = {}
        self.seen: Counter[str] = Counter()

    def some(self) -> None:
        """Let two people in calls opt out, and one person whose lead waits."""
        in_calls = [call["to"] for call in self._sim.calls(open="1", fields="to")]
        in_calls = [phone for phone in in_calls if phone not in self._asked]
        for phone in self._rng.sample(in_calls, min(2, len(in_calls))):
            self._opt_out(phone, "in a call")
        waiting = Lead.objects.filter(status="backlog").order_by("-id").values_list("phone", flat=True)[:200]
        for phone in self._rng.sample(sorted({str(phone) for phone in waiting} - self._asked), 1):
            self._opt_out(phone, "while waiting")

    def _opt_out(self, phone: str, when: str) -> None:
        self._asked.add(phone)
        if self._rng.random() < 0.5:
            self.seen[f"by text {when}"] += 1
            self._sim.phone(phone).texts_us(self._number, "STOP")
        elif self._until_accepted(phone):
            self.acknowledged[phone] = time.time()
            self.seen[f"by API {when}"] += 1

    def _until_accepted(self, phone: str) -> bool:
        def accepted() -> bool:
            self._site.revive()
            try:
                answer = requests.post(
                    f"{self._site.base_url}/api/v1/do-not-call/",
                    json={"phone": phone},
                    headers={"Authorization": f"Bearer {self._key}"},
                    timeout=10,
                )
            except requests.RequestException:
                return False
            assert answer.ok or answer.status_code >= 500, answer.text
            return answer.ok

        wait_until(accepted, 60, interval=0.2)
        return True
