"""Measure the board with many users.

How soon a change reaches 100 and 1,000 open sockets, how soon one dispatcher sees another's action, how long the
first view of 2,000 open jobs takes, and how many bytes it loads.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any

import aiohttp
from django.conf import settings
from django.test import Client

from accounts.models import Organization, OrganizationLimits, User
from dispatch.core import clock, events
from dispatch.jobs.models import Job, Submission
from tests.benchmarks import Result
from tests.benchmarks.jobs_site import Site, running
from tests.benchmarks.measuring import percentile
from tests.support import factories as make
from tests.support.page_files import linked_files

DISPATCHERS, OPEN_JOBS, TECHNICIANS = 20, 2000, 30
CHANGES, VIEWS = 40, 12
PATIENCE_S = 30.0


def run() -> Iterator[Result]:
    # Sockets are opened from a loop in this thread; rows are written on others.
    os.environ.setdefault("DJANGO_ALLOW_ASYNC_UNSAFE", "1")
    organization, people, jobs = _ground()
    with running(dispatcher=False) as site:
        yield from asyncio.run(_views(site, people[0]))
        for sockets in (100, 1000):
            told, last, cpu_s = asyncio.run(_fan_out(site, organization, people, sockets, jobs))
            yield Result(f"a change told to {sockets} sockets, median of all", statistics.median(told), "ms")
            yield Result(f"a change told to the last of {sockets} sockets, median", statistics.median(last), "ms")
            name = f"the web process's CPU time to tell one of {sockets} sockets"
            yield Result(name, cpu_s * 1_000_000 / len(told), "µs")
        seen = asyncio.run(_seen(site, people, jobs, watching=0))
        yield Result(
            "another's claim on one's board, 100 sockets open, median", percentile(seen, 0.5), "ms", "<= 150"
        )
        yield Result("another's claim on one's board, 100 sockets open, p90", percentile(seen, 0.9), "ms")
        seen = asyncio.run(_seen(site, people, jobs, watching=100))
        peer = "all 100 boards fetch"
        yield Result("another's claim on one's board, median", percentile(seen, 0.5), "ms", "", peer)


def _ground() -> tuple[Organization, list[tuple[User, str]], list[int]]:
    """An organization with people at work (each with a session), technicians and open jobs."""
    organization = make.organization("Many Dispatchers")
    OrganizationLimits.objects.create(organization=organization, sockets=0)  # no limit
    service = make.service_type(organization, "heater", name="Water heater")
    make.number(organization, max_channels=50)
    for n in range(TECHNICIANS):
        make.technician(organization, f"Unit {n}")
    form: dict[str, Any] = {
        "organization": organization, "customer_name": "Dana Whitfield", "customer_phone": "+16025550123",
        "service_type": service, "address": make.PHOENIX.address,
    }  # fmt: skip
    forms = Submission.objects.bulk_create(
        Submission(form={}, status="processed", **form) for _ in range(OPEN_JOBS)
    )
    later = clock.now() + timedelta(hours=5)
    jobs = Job.objects.bulk_create(
        Job(
            submission=one, lat=make.PHOENIX.lat, lng=make.PHOENIX.lng, waiting_since=clock.now(), **form,
            **({"status": "pending", "pending_reason": "exhausted", "waiting_for": "person"} if n % 2 else
               {"status": "dispatching", "next_action_at": later, "waiting_for": "start"}),
        )
        for n, one in enumerate(forms)
    )  # fmt: skip
    return organization, [_signed_in(organization) for _ in range(DISPATCHERS)], [one.pk for one in jobs]


def _signed_in(organization: Organization) -> tuple[User, str]:
    user = make.dispatcher(organization)
    client = Client()
    client.force_login(user, backend="django.contrib.auth.backends.ModelBackend")
    return user, client.cookies[settings.SESSION_COOKIE_NAME].value


def _browser(site: Site, session: str) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        base_url=site.base_url,
        cookies={settings.SESSION_COOKIE_NAME: session},
        headers={"Origin": site.base_url, "HX-Request": "true"},
        connector=aiohttp.TCPConnector(limit=0),
        cookie_jar=aiohttp.CookieJar(unsafe=True),  # the host is an address, whose cookies are else not kept
    )


async def _views(site: Site, person: tuple[User, str]) -> list[Result]:
    jobs = f"{OPEN_JOBS:,} open jobs"
    headers = {"HX-Request": "false", "Accept-Encoding": "gzip"}
    async with _browser(site, person[1]) as browser:
        taken, page = [], b""
        for _ in range(VIEWS):
            start = time.perf_counter()
            async with browser.get("/board/", headers=headers) as answer:
                page = await answer.read()
            taken.append((time.perf_counter() - start) * 1000)
        size = 0
        for address in ("/board/", *linked_files(page.decode())):
            async with browser.get(address, headers=headers, auto_decompress=False) as answer:
                size += len(await answer.read())
    return [
        Result(f"the board's first view with {jobs}, median", statistics.median(taken), "ms", "<= 300"),
        Result(f"the board's page alone with {jobs}, not compressed", len(page) / 1000, "kB"),
        Result(f"all that the first view of {jobs} loads, compressed", size / 1000, "kB", "<= 150"),
    ]


class _Page:
    """One open socket: resolves `heard(event)` when it is notified of that event."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, browser: aiohttp.ClientSession) -> None:
        self.socket, self.browser = socket, browser
        self.at: dict[int, float] = {}
        self.news = asyncio.Event()
        self.fetches = False
        self.task = asyncio.create_task(self._listen())

    async def _listen(self) -> None:
        async for message in self.socket:
            told = json.loads(message.data)
            if told["type"] != "events":
                continue
            for hint in told["items"]:
                self.at[hint["id"]] = time.perf_counter()
            self.news.set()
            if self.fetches:
                await self.fetch(told["items"])

    async def fetch(self, hints: list[dict[str, Any]]) -> dict[str, Any]:
        ids = ",".join(str(hint["job"]) for hint in hints if hint["job"])
        async with self.browser.get(f"/board/changes/?ids={ids}&event={hints[-1]['id']}") as answer:
            found: dict[str, Any] = await answer.json()
            return found

    async def heard(self, event: int) -> float:
        async with asyncio.timeout(PATIENCE_S):
            while event not in self.at:
                self.news.clear()
                await self.news.wait()
        return self.at[event]


async def _open(stack: AsyncExitStack, site: Site, people: list[tuple[User, str]], count: int) -> list[_Page]:
    """Open `count` sockets of these people, all of which have been welcomed."""
    browsers = [await stack.enter_async_context(_browser(site, session)) for _, session in people]

    async def one(n: int) -> _Page:
        browser = browsers[n % len(browsers)]
        socket = await stack.enter_async_context(browser.ws_connect("/ws/"))
        assert (await socket.receive_json())["type"] == "welcome"
        return _Page(socket, browser)

    pages: list[_Page] = []
    for begin in range(0, count, 25):
        pages += await asyncio.gather(*(one(n) for n in range(begin, min(begin + 25, count))))
    return pages


async def _fan_out(
    site: Site, organization: Organization, people: list[tuple[User, str]], sockets: int, jobs: list[int]
) -> tuple[list[float], list[float], float]:
    """Return the milliseconds from just before the commit: per socket and change, and to the last socket of each.

    Also returns the CPU seconds of the web process in that time.
    """
    told, last = [], []
    async with AsyncExitStack() as stack:
        pages = await _open(stack, site, people, sockets)
        with site.meter() as meter:
            for n in range(CHANGES):
                start = time.perf_counter()
                event = await asyncio.to_thread(events.append, organization.pk, "job.resumed", jobs[n])
                arrived = await asyncio.gather(*(page.heard(event.pk) for page in pages))
                told += [(at - start) * 1000 for at in arrived]
                last.append((max(arrived) - start) * 1000)
        for page in pages:
            page.task.cancel()
    return told, last, meter.spent["web"]


async def _seen(site: Site, people: list[tuple[User, str]], jobs: list[int], *, watching: int) -> list[float]:
    """Return the milliseconds from one dispatcher's click to the change on another's board.

    100 sockets are open, of which `watching` fetch the change, as a visible board does.
    """
    taken = []
    async with AsyncExitStack() as stack:
        pages = await _open(stack, site, people, 100)
        one, other = (pages[1], pages[0]) if watching else (pages[0], pages[1])
        do = "take_over" if watching else "claim"  # the second time round somebody has them already
        for page in pages[2 : 2 + watching]:
            page.fetches = True
        async with one.browser.get("/board/", headers={"HX-Request": "false"}) as answer:
            token = (await answer.text()).split('"X-CSRFToken": "')[1].split('"')[0]
        for n in range(CHANGES):
            job = jobs[1 + 2 * n]  # among the oldest, which the list shows
            known = set(other.at)
            start = time.perf_counter()
            form = {"kind": "job", "key": str(job), "do": do}
            async with one.browser.post("/board/claims/", data=form, headers={"X-CSRFToken": token}) as answer:
                assert answer.status == 204, await answer.text()
            async with asyncio.timeout(PATIENCE_S):
                while not set(other.at) - known:
                    other.news.clear()
                    await other.news.wait()
            hint = {"id": max(other.at), "job": job}
            told = await other.fetch([hint])
            assert any(
                f'value="{job}"' in item["html"] and "Claimed by" in item["html"] for item in told["attention"]
            )
            taken.append((time.perf_counter() - start) * 1000)
        for page in pages:
            page.task.cancel()
    return sorted(taken)
