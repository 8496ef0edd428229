"""Create 100,000 schedules through the API in one request.

One web process and one worker of the import queue; each row is validated as by the API of its kind.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import psutil
import requests
from django.conf import settings

from accounts.models import Organization
from dispatch.core import clock
from dispatch.schedules.models import Run, Schedule
from tests.benchmarks import Result, jobs_site
from tests.support import factories
from tests.support.waiting import wait_until

MANY = 100_000
LONGEST_S = 300


def run() -> Iterator[Result]:
    organization = factories.organization("Copper State HVAC", time_zone="America/Phoenix")
    service = factories.service_type(organization)
    key = factories.api_key(organization)
    with jobs_site.running(dispatcher=False, queues=[settings.SCHEDULE_IMPORT_QUEUE]) as site:
        forms = [_visit(n, service.code) for n in range(MANY)]
        yield from _created(site, organization, key, "maintenance visits", {"kind": "submission"}, forms)
        calls = [_call(n) for n in range(MANY)]
        yield from _created(site, organization, key, "calls to a URL", {"kind": "http"}, calls)


def _visit(n: int, service: str) -> dict[str, Any]:
    form = {
        "customer_name": f"Customer {n}",
        "customer_phone": f"+1602{2_000_000 + n}",
        "service_type": service,
        "address": f"{n} W Washington St, Phoenix, AZ 85003",
        "lat": 33.4484,
        "lng": -112.074,
    }
    starts = clock.now() + timedelta(days=1, minutes=n)
    return {"name": f"Visit {n}", "payload": form, "every": 1, "unit": "year", "starts_at": starts.isoformat()}


def _call(n: int) -> dict[str, Any]:
    payload = {"url": f"https://erp.example.com/hooks/{n}", "body": {"n": n}}
    return {"name": f"Call {n}", "payload": payload, "cron": f"{n % 60} {n // 60 % 24} * * 1-5"}


def _created(
    site: jobs_site.Site, organization: Organization, key: str, what: str, defaults: Any, rows: list[Any]
) -> Iterator[Result]:
    there = Schedule.objects.of(organization).count()
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    headers["Idempotency-Key"] = defaults["kind"]
    body = json.dumps({"defaults": defaults, "schedules": rows})
    began = time.perf_counter()
    answer = requests.post(f"{site.base_url}/api/v1/schedule-imports/", body, headers=headers, timeout=LONGEST_S)
    taken_in = time.perf_counter() - began
    assert answer.status_code == 202, answer.text[:500]

    def progress() -> dict[str, Any]:
        found: dict[str, Any] = requests.get(answer.headers["Location"], headers=headers, timeout=60).json()
        return found

    wait_until(lambda: progress()["status"] == "done", LONGEST_S, lambda: str(progress()), interval=0.5)
    took = time.perf_counter() - began
    made = progress()
    assert (made["created"], made["refused"]) == (MANY, 0), str(made)[:1000]
    assert Schedule.objects.of(organization).count() == there + MANY
    assert Run.objects.of(organization).filter(status="scheduled").count() == there + MANY
    size = len(body) / 2**20
    yield Result(f"{MANY:,} {what}, {size:.0f} MiB: until they are taken in (202)", taken_in, "s")
    yield Result(f"{MANY:,} {what}: until all are created", took, "s")
    yield Result(f"{MANY:,} {what}: created", MANY / took, "schedules/s")
    yield Result(f"{MANY:,} {what}: memory of the web process", _memory(site, "web"), "MiB")


def _memory(site: jobs_site.Site, name: str) -> float:
    pid = site.supervisor.pid_of(name)
    assert pid
    return float(psutil.Process(pid).memory_info().rss) / 2**20
