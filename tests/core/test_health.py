"""What probes and Prometheus ask, also when a part is missing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import requests
from django.db import connection
from django.test import Client

from dispatch.core import generation, health, metrics
from dispatch.core.queues import enqueue
from tests.connecting import connect_anew
from tests.core.outages import redis_away
from tests.processes import ROOT, environment, free_port, running
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


def test_alive_whatever_host_the_probe_names(client: Client) -> None:
    answer = client.get("/healthz", HTTP_HOST="10.2.3.4:8000")
    assert (answer.status_code, answer.content) == (200, b"ok\n")


def test_ready_when_everything_is_there(client: Client) -> None:
    answer = client.get("/readyz", HTTP_HOST="10.2.3.4:8000")
    assert (answer.status_code, answer.json()) == (200, {"status": "ready"})


def test_not_ready_names_redis_while_it_is_away_and_goes_on_being_alive(client: Client) -> None:
    with redis_away():
        answer = client.get("/readyz")
        assert client.get("/healthz").status_code == 200
    assert answer.status_code == 503
    assert answer["Content-Type"] == "application/problem+json"
    assert [error["code"] for error in answer.json()["errors"]] == ["redis"]
    assert client.get("/readyz").status_code == 200


def test_not_ready_names_the_database_while_it_is_away(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    connect_anew()
    monkeypatch.setitem(connection.settings_dict, "HOST", "/nonexistent")
    pool = {"min_size": 0, "max_size": 1, "timeout": 0.2}
    monkeypatch.setitem(connection.settings_dict["OPTIONS"], "pool", pool)
    try:
        answer = client.get("/readyz")
    finally:
        connect_anew()
    assert [error["code"] for error in answer.json()["errors"]] == ["database"]


def test_not_ready_names_migrations_that_are_not_applied(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    from django.db.migrations.recorder import MigrationRecorder

    monkeypatch.setattr(health, "_migrated", False)
    last = MigrationRecorder.Migration.objects.filter(app="core").latest("pk")
    last_fields = {"app": last.app, "name": last.name, "applied": last.applied}
    last.delete()
    try:
        problem = client.get("/readyz").json()
    finally:
        MigrationRecorder.Migration.objects.create(**last_fields)
    assert [error["code"] for error in problem["errors"]] == ["migrations"]
    assert "manage.py migrate" in problem["errors"][0]["detail"]
    assert client.get("/readyz").status_code == 200


def test_metrics_tell_of_queues_and_counters(client: Client) -> None:
    enqueue("dispatch-queue", "tests.core.jobs.leave", "a")
    generation.ensure()
    told = client.get("/metrics", HTTP_HOST="10.2.3.4:8000").content.decode()
    assert 'dispatch_queue_jobs{queue="dispatch-queue",state="waiting"} 1.0' in told
    assert "dispatch_redis_rebuilds_total" in told


def test_metrics_without_redis_still_tell_the_rest(client: Client) -> None:
    with redis_away():
        told = client.get("/metrics").content.decode()
    assert "dispatch_queue_jobs{" not in told
    assert "dispatch_reader_lag_seconds" in told


def test_metrics_ask_for_their_token(client: Client, settings: object) -> None:
    settings.METRICS_TOKEN = "open sesame"
    assert client.get("/metrics").status_code == 401
    assert client.get("/metrics", headers={"Authorization": "Bearer wrong"}).status_code == 401
    assert client.get("/metrics", headers={"Authorization": "Bearer open sesame"}).status_code == 200


def test_probes_cannot_be_written_to(client: Client) -> None:
    assert client.post("/healthz").status_code == 405


def test_what_dispatchers_and_workers_count_is_told_by_the_web_process_beside_them(tmp_path: Path) -> None:
    """Processes that were given one folder write their counters there; whoever is scraped tells the sum."""
    env = {**os.environ, **metrics.new_folder(tmp_path / "metrics"), "DJANGO_SETTINGS_MODULE": "tests.settings"}
    count = (
        "import django; django.setup(); from dispatch.core import metrics;"
        "metrics.loop_steps.labels('told_test', 'done').inc(3)"
    )
    for _ in range(2):
        subprocess.run([sys.executable, "-c", count], env=env, cwd=ROOT, check=True)
    tell = "import django; django.setup(); from dispatch.core import metrics; print(metrics.told().decode())"
    told = subprocess.run(
        [sys.executable, "-c", tell], env=env, cwd=ROOT, check=True, capture_output=True, text=True
    )
    assert 'dispatch_loop_steps_total{loop="told_test",outcome="done"} 6.0' in told.stdout


def test_a_process_that_stands_alone_tells_its_own_at_its_port() -> None:
    port = free_port()
    env = environment(connection.settings_dict["NAME"], METRICS_PORT=str(port))
    with running("dispatcher", "--only", "retention", env=env):
        session = requests.Session()
        session.trust_env = False

        def told() -> str:
            try:
                return session.get(f"http://127.0.0.1:{port}/metrics", timeout=5).text
            except requests.RequestException:
                return ""

        wait_until(lambda: "dispatch_loop_steps_total" in told())
