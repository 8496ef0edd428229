"""What may happen to a site at any moment, by chance."""

from __future__ import annotations

import random
import threading
from collections import Counter

from tests.phones import Simulator
from tests.soak.site import COMMANDS, Site

WORKERS = ("worker 1", "worker 2", "timeout worker")
DISPATCHERS = ("dispatcher 1", "dispatcher 2")
# How often each happens, beside the others.
LIKELY = {
    "a worker is killed": 5,
    "a dispatcher is killed": 4,
    "web is killed": 2,
    "both dispatchers are killed": 1,
    "everything is killed": 1,
    "Redis is killed": 2,
    "Redis is flushed": 2,
    "everything is killed and Redis is flushed": 1,
    "a create is cut off": 3,
    "creates are refused for a while": 2,
    "callbacks come twice": 3,
    "callbacks come late": 2,
    "callbacks are lost": 2,
}


class Troubles:
    """`happen()` does one thing by chance, waits a moment, and starts again what does not run."""

    def __init__(self, site: Site, sim: Simulator, rng: random.Random) -> None:
        self._site, self._sim, self._rng = site, sim, rng
        self._moment = threading.Event()  # never set: only its waiting is wanted
        self.seen: Counter[str] = Counter()

    def happen(self) -> None:
        what = self._rng.choices(list(LIKELY), weights=list(LIKELY.values()))[0]
        self.seen[what] += 1
        self._do(what)
        self._moment.wait(self._rng.uniform(0.0, 2.0))
        self._site.revive()
        self._moment.wait(self._rng.uniform(0.5, 4.0))

    def _do(self, what: str) -> None:
        site, sim = self._site, self._sim
        match what:
            case "a worker is killed":
                site.kill(self._rng.choice(WORKERS))
            case "a dispatcher is killed":
                site.kill(self._rng.choice(DISPATCHERS))
            case "web is killed":
                site.kill("web")
            case "both dispatchers are killed":
                site.kill(*DISPATCHERS)
            case "everything is killed":
                site.kill(*COMMANDS)
            case "Redis is killed":
                site.redis.kill()
                self._moment.wait(self._rng.uniform(0.0, 3.0))
                site.redis.start()
            case "Redis is flushed":
                site.redis.client().flushall()
            case "everything is killed and Redis is flushed":
                site.kill(*COMMANDS)
                site.redis.client().flushall()
            case "a create is cut off":
                sim.fault(self._rng.choice(["reset_before", "reset_after", "error_500"]), times=1)
            case "creates are refused for a while":
                sim.answer_429(times=self._rng.randint(1, 5))
            case "callbacks come twice":
                sim.duplicate_callbacks(times=self._rng.randint(1, 10))
            case "callbacks come late":
                sim.delay_callbacks(self._rng.uniform(1, 20), times=self._rng.randint(1, 5))
            case "callbacks are lost":
                sim.lose_callbacks(times=self._rng.randint(1, 2))
            case _:
                raise AssertionError(what)
