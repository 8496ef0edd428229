"""Provide the basis of every test: an empty Redis, a restored clock, the application over real HTTP.

PostgreSQL and Valkey are the embedded ones under DISPATCH_DATA_DIR (default .data/test) unless DATABASE_URL and
REDIS_URL name others; such a Redis is emptied. Flows that enqueue, call or are read from another connection need
committed rows: mark such tests `@pytest.mark.django_db(transaction=True)`, or use `app_url`.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from django.conf import settings as django_settings
from django.db import connection
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings

from dispatch.core import clock
from dispatch.core.redis import generation
from dispatch.core.redis.client import client
from tests.support import patient_batches, prompt_hang_ups
from tests.support.caches import as_if_just_started
from tests.support.database import use_instead_of_flush
from tests.support.migrated_template import create_template
from tests.support.waiting import PATIENCE, wait_until

pytest_plugins = ["tests.phones.fixtures", "tests.notifications.fixtures"]
use_instead_of_flush()
# The suite uses the same examples each time, also on a busy machine; those of the soak are random.
hypothesis_settings.register_profile(
    "suite", derandomize=True, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow]
)
hypothesis_settings.load_profile("suite")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[Any]:
    """Discover the admin, as a web process does, before tests take their parameters from it.

    Garbage collections would take a third of the time, and find nothing: what is loaded stays. So collections
    during the tests do not visit it either.
    """
    gc.disable()
    try:
        import dispatch.urls  # noqa: F401

        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="session")
def django_db_modify_db_settings(
    request: pytest.FixtureRequest, django_db_modify_db_settings_parallel_suffix: None, django_db_blocker: Any
) -> None:
    """Create the test database as a copy of a migrated one, unless an earlier run's is used (`--reuse-db`)."""
    if not django_settings.EMBEDDED_POSTGRES or request.config.getvalue("reuse_db"):
        return
    with django_db_blocker.unblock():
        template = create_template()
    connection.settings_dict["TEST"] |= {"TEMPLATE": template, "MIGRATE": False}


@pytest.fixture(autouse=True)
def _clean_ground() -> Iterator[None]:
    """Start every test with an empty Redis and empty caches, and restore the clock."""
    as_if_just_started()  # first: a circuit that an earlier test has opened would refuse to empty Redis
    forget_redis()
    with clock.restored():
        yield


@pytest.fixture(autouse=True)
def _patient_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let one pass of a loop find every due row, although webhooks lock rows for a moment."""
    patient_batches.install(monkeypatch)


@pytest.fixture(autouse=True)
def _prompt_hang_ups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the provider be asked for a hang-up immediately after its commit."""
    prompt_hang_ups.install(monkeypatch)


def forget_redis() -> None:
    """Delete our keys and RQ's from the tests' Redis, as a flush or a new server would."""
    if django_settings.EMBEDDED_REDIS:
        client().flushdb()
        return
    for pattern in (f"{django_settings.REDIS_PREFIX}*", "rq:*"):
        for name in client().scan_iter(pattern, count=1000):
            client().delete(name)


@pytest.fixture(scope="session")
def _app_server(django_db_setup: None) -> Iterator[tuple[str, Any]]:
    """Run the real ASGI application under uvicorn, in a thread of this process, on a free port."""
    import uvicorn

    from dispatch.asgi import application
    from dispatch.core.web.http_protocol import HeaderLimitProtocol

    config = uvicorn.Config(
        application, host="127.0.0.1", port=0, log_config=None, lifespan="on", http=HeaderLimitProtocol
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, name="app", daemon=True)
    thread.start()
    wait_until(lambda: server.started, message="the application did not start")
    port = server.servers[0].sockets[0].getsockname()[1]
    yield f"http://127.0.0.1:{port}", server
    server.should_exit = True
    thread.join(timeout=PATIENCE)


@pytest.fixture
def app_url(_app_server: tuple[str, Any], transactional_db: None, settings: django_settings) -> Iterator[str]:
    """Return the URL of the running application on the test database: `requests.get(f"{app_url}/healthz")`.

    It is also PUBLIC_BASE_URL, so that the simulator's webhooks arrive.
    """
    url, server = _app_server
    settings.PUBLIC_BASE_URL = url
    generation.ensure_generation()  # as a dispatcher does each second
    yield url
    with suppress(AssertionError):  # requests in progress would collide with emptying the database
        wait_until(lambda: not server.server_state.tasks)


@pytest.fixture
def test_environment(transactional_db: None) -> dict[str, str]:
    """Return the environment for a child process on this test's database, Redis and clock."""
    from tests.support.processes import environment

    return environment(connection.settings_dict["NAME"])
