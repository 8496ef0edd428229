"""A board whose server and Redis stop and come back: it says so, and misses nothing."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import requests
from django.conf import settings
from django.db import connection
from playwright.sync_api import Browser, expect

from dispatch.core import events
from tests.console.test_board import Desk
from tests.core.outages import OwnValkey, own_valkey
from tests.support import factories as make
from tests.support.processes import Process, environment
from tests.support.waiting import PATIENCE, wait_until

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]


class Web:
    """The web process, on a separate port and Redis."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.redis: OwnValkey = stack.enter_context(own_valkey(folder))
        self._door = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=64))
        self.url = f"http://127.0.0.1:{self._door.getsockname()[1]}"
        self._env = environment(
            connection.settings_dict["NAME"],
            REDIS_URL=self.redis.url,
            PUBLIC_BASE_URL=self.url,
            DISPATCH_DATA_DIR=str(settings.DATA_DIR),
            SOCKET_RECHECK_S="1",
        )
        self.start()
        stack.callback(lambda: self.process.kill())

    def start(self) -> None:
        fd = self._door.fileno()
        self.process = Process(("web", "--fd", str(fd)), self._env, pass_fds=(fd,))
        wait_until(self._ready, PATIENCE, self.process.log)

    def _ready(self) -> bool:
        try:
            return requests.get(f"{self.url}/healthz", timeout=5).ok
        except requests.RequestException:
            return False


@pytest.fixture
def web(tmp_path: Path) -> Iterator[Web]:
    with ExitStack() as stack:
        yield Web(tmp_path, stack)


def test_nothing_is_missed_while_server_and_redis_restart(web: Web, browser, chromium: Browser):
    desk = Desk(browser)
    job = desk.job()
    context = chromium.new_context(viewport={"width": 1600, "height": 900})
    context.add_cookies([{"name": "sessionid", "value": desk.client.cookies["sessionid"].value, "url": web.url}])
    page = context.new_page()
    page.set_default_timeout(1000 * PATIENCE)
    page.goto(f"{web.url}/board/?job={job.pk}")
    connection_state = page.locator("#connection")
    expect(connection_state).to_have_text("Live", timeout=1000 * PATIENCE)

    def stands_in(name: str, one) -> None:
        found = page.locator(f'[data-list="{name}"] a[data-open="{one.pk}"]')
        expect(found).to_be_visible(timeout=1000 * PATIENCE)

    # The server stops, and with it the connection; changes meanwhile are pushed to nobody.
    web.process.kill()
    expect(connection_state).to_contain_text("Offline", timeout=1000 * PATIENCE)
    expect(page.locator("#act-pause")).to_have_attribute("aria-disabled", "true")
    page.locator("#act-pause").click(force=True)
    expect(page.locator("#said")).to_contain_text("Nothing was sent")
    type(job).objects.filter(pk=job.pk).update(
        status="cancelled", next_action_at=None, ended_at=job.created_at, version=9
    )
    events.append(desk.organization.pk, "job.cancelled", job.pk, reason="called off")
    newer = desk.job("pending")
    web.start()
    expect(connection_state).to_have_text("Live", timeout=1000 * PATIENCE)
    stands_in("done", job)
    stands_in("attention", newer)
    expect(page.locator("#drawer-body")).to_contain_text("canceled the job: called off")

    # Redis stops: live updates are lost, the connection stays, and the socket reads the database.
    web.redis.kill()
    another = desk.job("pending")
    events.append(desk.organization.pk, "job.pending", another.pk)
    stands_in("attention", another)
    web.redis.start()
    last = desk.job("assigned", technician=make.technician(desk.organization))
    events.append(desk.organization.pk, "job.assigned", last.pk)
    stands_in("assigned", last)
    expect(connection_state).to_have_text("Live", timeout=1000 * PATIENCE)
    context.close()
