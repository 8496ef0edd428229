"""/metrics works for Prometheus, even if a server is missing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import requests
from django.db import connection
from django.test import Client

from dispatch.core.observability import metrics
from dispatch.core.redis import generation
from dispatch.core.runtime.queues import enqueue
from tests.core.outages import redis_away
from tests.support.processes import ROOT, environment, free_port, running
from tests.support.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


def test_metrics_include_queues_and_counters(client: Client) -> None:
    enqueue("dispatch-queue", "tests.core.jobs.leave", "a")
    generation.ensure_generation()
    told = client.get("/metrics", HTTP_HOST="10.2.3.4:8000").content.decode()
    assert 'dispatch_queue_jobs{queue="dispatch-queue",state="waiting"} 1.0' in told
    assert "dispatch_redis_rebuilds_total" in told


def test_metrics_without_redis_include_the_rest(client: Client) -> None:
    with redis_away():
        told = client.get("/metrics").content.decode()
    assert "dispatch_queue_jobs{" not in told
    assert "dispatch_reader_lag_seconds" in told


def test_metrics_require_their_token(client: Client, settings: object) -> None:
    settings.METRICS_TOKEN = "open sesame"
    assert client.get("/metrics").status_code == 401
    assert client.get("/metrics", headers={"Authorization": "Bearer wrong"}).status_code == 401
    assert client.get("/metrics", headers={"Authorization": "Bearer open sesame"}).status_code == 200


def test_without_a_token_only_development_may_read_metrics(client: Client, settings: object) -> None:
    settings.METRICS_TOKEN = ""
    assert client.get("/metrics").status_code == 200
    settings.DEVELOPMENT = False
    assert client.get("/metrics").status_code == 401
    assert client.get("/metrics", headers={"Authorization": "Bearer "}).status_code == 401


def test_web_process_exports_counters_of_dispatchers_and_workers(tmp_path: Path) -> None:
    """Processes with the same folder write their counters there; the scraped process exports the sum."""
    env = {**os.environ, **metrics.new_folder(tmp_path / "metrics"), "DJANGO_SETTINGS_MODULE": "tests.settings"}
    count = (
        "import django; django.setup(); from dispatch.core.observability import metrics;"
        "metrics.loop_steps.labels('told_test', 'done').inc(3)"
    )
    for _ in range(2):
        subprocess.run([sys.executable, "-c", count], env=env, cwd=ROOT, check=True)
    tell = (
        "import django; django.setup(); from dispatch.core.observability import metrics;"
        "print(metrics.render_metrics().decode())"
    )
    told = subprocess.run(
        [sys.executable, "-c", tell], env=env, cwd=ROOT, check=True, capture_output=True, text=True
    )
    assert 'dispatch_loop_steps_total{loop="told_test",outcome="done"} 6.0' in told.stdout


def test_standalone_process_exposes_metrics_at_its_port() -> None:
    port = free_port()
    env = environment(connection.settings_dict["NAME"], METRICS_PORT=str(port), METRICS_TOKEN="t0ken")
    with running("dispatcher", "--only", "retention", env=env):
        session = requests.Session()
        session.trust_env = False

        def told(token: str) -> requests.Response | None:
            try:
                headers = {"Authorization": f"Bearer {token}"}
                return session.get(f"http://127.0.0.1:{port}/metrics", headers=headers, timeout=5)
            except requests.RequestException:
                return None

        wait_until(lambda: (answer := told("t0ken")) and "dispatch_loop_steps_total" in answer.text)
        refused = told("other")
        assert refused is not None
        assert (refused.status_code, refused.text) == (401, "")
