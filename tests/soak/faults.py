"""The faults of a site of several hosts, what is promised under each, and how long each lasts."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import NamedTuple

from tests.soak.hosts import APPS, FAKETIME, Hosts

Begin = Callable[[Hosts, str], AbstractContextManager[None]]


class Fault(NamedTuple):
    """A fault that lasts while the block of `during(hosts, victim)` runs; the victim is the host that leads."""

    name: str
    promise: str
    seconds: float
    during: Begin
    is_extra: bool = False  # left out unless SOAK_FAULTS=all, so that a run takes a quarter of an hour

    @property
    def missing(self) -> str:
        """Return why this machine cannot cause it, or an empty text."""
        if "clock" in self.name and FAKETIME is None:
            return "libfaketime is not installed (Debian: apt install faketime)"
        if self.is_extra and os.environ.get("SOAK_FAULTS") != "all":
            return "SOAK_FAULTS=all runs it too"
        return ""


def other(host: str) -> str:
    return APPS[1 - APPS.index(host)]


def cut(source: str, *targets: str) -> Begin:
    """Cut a host from these, in both directions. "victim" stands for the victim."""

    @contextmanager
    def during(hosts: Hosts, victim: str) -> Iterator[None]:
        host, *others = [victim if name == "victim" else name for name in (source, *targets)]
        hosts.network.cut(host, *others)
        yield
        hosts.network.heal()

    return during


@contextmanager
def replies_of_the_database_lost(hosts: Hosts, victim: str) -> Iterator[None]:
    hosts.network.cut_one_way("database", victim)
    yield
    hosts.network.heal()


@contextmanager
def requests_to_the_database_lost(hosts: Hosts, victim: str) -> Iterator[None]:
    hosts.network.cut_one_way(victim, "database")
    yield
    hosts.network.heal()


@contextmanager
def database_far_away(hosts: Hosts, victim: str) -> Iterator[None]:
    for app in APPS:
        hosts.network.shape(app, "database", delay_s=0.15, lost=0.05)
    yield
    hosts.network.heal()


def clock_moved(seconds: float) -> Begin:
    @contextmanager
    def during(hosts: Hosts, victim: str) -> Iterator[None]:
        hosts.move_clock(victim, seconds)
        yield
        hosts.move_clock(victim, 0.0)

    return during


@contextmanager
def leader_paused(hosts: Hosts, victim: str) -> Iterator[None]:
    hosts.pause(victim, "dispatcher")
    yield
    hosts.resume(victim, "dispatcher")


@contextmanager
def host_killed(hosts: Hosts, victim: str) -> Iterator[None]:
    hosts.kill(victim)
    yield
    hosts.revive(victim)


@contextmanager
def host_without_power(hosts: Hosts, victim: str) -> Iterator[None]:
    """No FIN and no reset is sent: the other hosts only see silence."""
    hosts.network.cut(victim)
    hosts.kill(victim)
    yield
    hosts.network.heal()
    hosts.revive(victim)


@contextmanager
def disk_full(hosts: Hosts, victim: str) -> Iterator[None]:
    hosts.fill_disk()
    yield
    hosts.free_disk()


@contextmanager
def connections_taken(hosts: Hosts, victim: str) -> Iterator[None]:
    with ExitStack() as held:
        held.enter_context(hosts.connections_taken(victim))
        yield


GOES_ON_ELSEWHERE = "the other host takes over"
GOES_ON_AFTER = "goes on by itself afterwards"

FAULTS = (
    Fault("the leading host is cut from PostgreSQL", GOES_ON_ELSEWHERE, 40, cut("victim", "database")),
    Fault("a host is cut from Redis", GOES_ON_ELSEWHERE, 30, cut("victim", "redis"), True),
    Fault("the leading host is cut from the provider", GOES_ON_ELSEWHERE, 45, cut("victim", "provider")),
    Fault("the provider is cut from all", GOES_ON_AFTER, 30, cut("provider", *APPS, "proxy"), True),
    Fault("PostgreSQL is cut from all", GOES_ON_AFTER, 25, cut("database", *APPS), True),
    Fault("Redis is cut from all", GOES_ON_AFTER, 30, cut("redis", *APPS)),
    Fault("replies of PostgreSQL to a host are lost", GOES_ON_ELSEWHERE, 30, replies_of_the_database_lost, True),
    Fault("requests of a host to PostgreSQL are lost", GOES_ON_ELSEWHERE, 30, requests_to_the_database_lost, True),
    Fault("PostgreSQL is 300 ms away and packets are lost", "works, slowly", 40, database_far_away, True),
    Fault("a host's clock is 3 minutes ahead", "works as before", 40, clock_moved(180)),
    Fault("a host's clock is 3 minutes behind", "works as before", 40, clock_moved(-180), True),
    Fault("the leading dispatcher pauses and wakes", GOES_ON_ELSEWHERE, 40, leader_paused, True),
    Fault("the disk of PostgreSQL is full", GOES_ON_AFTER, 25, disk_full),
    Fault("all connections are taken", GOES_ON_ELSEWHERE, 30, connections_taken, True),
    Fault("everything on the leading host is killed", GOES_ON_ELSEWHERE, 25, host_killed, True),
    Fault("the leading host loses power", GOES_ON_ELSEWHERE, 25, host_without_power),
)
