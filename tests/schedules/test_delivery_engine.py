"""URL calls of runs pass the outbox's gates: pauses, circuits, pools and rates; held runs spend no attempt."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings as configured
from django.db import OperationalError

from dispatch.capacity import services as capacity
from dispatch.capacity.models import DispatchPool
from dispatch.core import clock
from dispatch.core.http import client, webhook_signing
from dispatch.core.models import Event
from dispatch.outbox import direct_delivery, http_exchange
from dispatch.outbox.models import DirectRequest, Endpoint, Target
from dispatch.outbox.services import pool_slots, target_health
from dispatch.outbox.services.intake import default_pool
from dispatch.schedules.models import Run, RunReport, Schedule
from dispatch.schedules.rules import outcomes
from dispatch.schedules.services import actions, held_runs
from dispatch.schedules.services import schedules as schedule_services
from tests.core.threads import Elsewhere
from tests.harness.schedules import ANA, SYSTEM, World
from tests.outbox.receiver import Answer, Receiver, Visit
from tests.support.certificates import Authority
from tests.support.database import read_only_error
from tests.support.waiting import PATIENCE


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    found = Receiver()
    yield found
    found.close()


def endpoint(world: World, url: str, **fields: Any) -> Endpoint:
    return Endpoint.objects.create(
        organization=world.organization,
        name=fields.pop("name", "ERP"),
        url=url,
        secret=webhook_signing.new_secret(),
        pool=default_pool(world.organization.pk),
        **fields,
    )


def limit(world: World, **fields: Any) -> DispatchPool:
    """Change the pool of requests without an endpoint, and of the endpoint above."""
    pool = default_pool(world.organization.pk)
    DispatchPool.objects.filter(pk=pool.pk).update(**fields)
    return pool


def calls(world: World, receiver: Receiver, *names: str, **fields: Any) -> list[Schedule]:
    """Create a schedule for each name that calls the receiver now, without retries."""
    target = fields.pop("target", {"url": receiver.url})
    return [
        world.schedule(
            name, kind="http", payload={**target, "body": {"name": name}, **fields}, trigger_at=clock.now(),
            retry_schedule_s=[],
        )
        for name in names
    ]  # fmt: skip


def statuses(world: World, schedules: list[Schedule]) -> list[str]:
    return [world.run(schedule).status for schedule in schedules]


def test_requests_wait_for_the_slots_of_their_pool(real: World, receiver: Receiver) -> None:
    limit(real, concurrency=2)
    schedules = calls(real, receiver, *"abcdef")
    real.go()
    assert statuses(real, schedules) == ["succeeded"] * 6
    assert receiver.most_open <= 2
    assert not DirectRequest.objects.exists()


def test_run_held_by_its_pool_spends_no_attempt(real: World, receiver: Receiver) -> None:
    limit(real, is_paused=True)
    (schedule,) = calls(real, receiver, "a")
    for _ in range(3):
        real.go()
        real.travel(400)
    run = real.run(schedule)
    assert (run.status, run.attempt, run.waiting_for) == ("retrying", 1, "pool paused")
    assert receiver.names == []
    assert not RunReport.objects.exists()
    limit(real, is_paused=False)
    real.go()
    assert statuses(real, [schedule]) == ["succeeded"]
    assert (real.run(schedule).waiting_for, real.run(schedule).deferred_since) == ("", None)


def hold_long(world: World, *names: str, **target: str) -> list[Schedule]:
    """Create schedules whose calls are held, and let them wait for an hour, so that they are tried rarely."""
    made = [
        world.schedule(
            name, kind="http", payload={**target, "body": {"name": name}}, trigger_at=clock.now(),
            retry_schedule_s=[],
        )
        for name in names
    ]  # fmt: skip
    world.go_until(clock.now() + timedelta(hours=1), step_s=300)
    assert not Run.objects.filter(due_at__lte=clock.now()).exists()
    return made


def test_held_runs_go_on_at_once_when_their_endpoint_is_resumed(real: World, receiver: Receiver) -> None:
    erp = endpoint(real, receiver.url)
    other = endpoint(real, receiver.url, name="Other")
    for one in (erp, other):
        target_health.pause_endpoint(one.pk, "", actor=SYSTEM)
    made = hold_long(real, "a", "b", endpoint=erp.name)
    waiting = hold_long(real, "c", endpoint=other.name)
    target_health.resume_endpoint(erp.pk, actor=SYSTEM)
    real.go()
    assert statuses(real, made) == ["succeeded"] * 2
    assert statuses(real, waiting) == ["retrying"]
    assert real.run(waiting[0]).due_at > clock.now()


def test_held_runs_go_on_at_once_when_their_endpoint_is_enabled(real: World, receiver: Receiver) -> None:
    erp = endpoint(real, receiver.url)
    target_health.disable_endpoint(erp.pk, "x", actor=SYSTEM)
    made = hold_long(real, "a", endpoint=erp.name)
    target_health.enable_endpoint(erp.pk, actor=SYSTEM)
    real.go()
    assert statuses(real, made) == ["succeeded"]


def test_held_runs_go_on_at_once_when_their_pool_is_resumed(real: World, receiver: Receiver) -> None:
    pool = limit(real)
    capacity.set_paused(pool, True, actor=SYSTEM)
    made = hold_long(real, "a", url=receiver.url)
    capacity.set_paused(pool, False, actor=SYSTEM)
    real.go()
    assert statuses(real, made) == ["succeeded"]


def test_failed_wake_does_not_fail_the_resumption(
    real: World, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    erp = endpoint(real, receiver.url)
    target_health.pause_endpoint(erp.pk, "", actor=SYSTEM)
    (made,) = hold_long(real, "a", endpoint=erp.name)

    def away(*args: object) -> None:
        raise OperationalError("away")

    with monkeypatch.context() as patch:
        patch.setattr(held_runs, "wake_held_runs", away)
        assert target_health.resume_endpoint(erp.pk, actor=SYSTEM)
    real.travel(400)
    real.go()
    assert statuses(real, [made]) == ["succeeded"]


def test_requests_take_the_tokens_of_their_pool(real: World, receiver: Receiver) -> None:
    limit(real, rate_per_minute=1)
    schedules = calls(real, receiver, "a", "b", "c")
    real.go()
    assert sorted(statuses(real, schedules)) == ["retrying", "retrying", "succeeded"]
    assert len(receiver.visits) == 1
    waiting = Run.objects.filter(waiting_for="rate").order_by("due_at").values_list("due_at", flat=True)
    first, second = ((at - clock.now()).total_seconds() for at in waiting)
    assert 50 < first <= 60 < second <= 120  # each waits for its own token
    real.travel(61)
    real.go()
    assert len(receiver.visits) == 2


def test_slots_of_messages_and_runs_are_counted_together(real: World) -> None:
    pool = limit(real, concurrency=1)
    held = {"organization": real.organization, "pool": pool, "slot": 1}
    DirectRequest.objects.create(**held, lease_until=clock.now() + timedelta(seconds=30))
    (given,) = pool_slots.assign_slots([pool.pk], clock.now())
    assert (given.slot, given.why) == (None, "slot")
    real.travel(31)  # its process died
    (given,) = pool_slots.assign_slots([pool.pk], clock.now())
    assert given.slot == 1


def test_failing_server_is_not_called_after_its_circuit_opened(real: World, receiver: Receiver) -> None:
    receiver.default.status = 500
    names = [str(number) for number in range(configured.OUTBOX_CIRCUIT_FAILURES)]
    assert set(statuses(real, [*calls(real, receiver, *names)])) == {"scheduled"}
    real.go()
    target = Target.objects.get(origin=receiver.url.removesuffix("/hook"))
    assert target.open_until is not None
    (late,) = calls(real, receiver, "late")
    real.go()
    assert (real.run(late).status, real.run(late).waiting_for) == ("retrying", "circuit")
    assert real.run(late).error == "The server 127.0.0.1 isn't responding."
    assert "late" not in receiver.names
    receiver.heal()
    real.travel(configured.OUTBOX_CIRCUIT_OPEN_S + 1)
    real.go()
    assert statuses(real, [late]) == ["succeeded"]
    target.refresh_from_db()
    assert (target.open_until, target.failing_since) == (None, None)


def test_only_one_run_probes_an_open_circuit(real: World, receiver: Receiver) -> None:
    to = endpoint(real, receiver.url)
    past = clock.now() - timedelta(seconds=1)
    Target.objects.create(organization=real.organization, endpoint=to, failures=5, openings=1, open_until=past)
    receiver.default.status = 500
    schedules = calls(real, receiver, "a", "b", "c", target={"endpoint": "ERP"})
    real.go()
    assert len(receiver.visits) == 1
    assert sorted(statuses(real, schedules)) == ["failed", "retrying", "retrying"]


def test_held_run_fails_after_the_longest_deferral(real: World, receiver: Receiver, settings: Any) -> None:
    settings.OUTBOX_DEFERRAL_LIMIT_S = 600.0
    to = endpoint(real, receiver.url)
    target_health.pause_endpoint(to.pk, "", actor=SYSTEM)
    (schedule,) = calls(real, receiver, "a", target={"endpoint": "ERP"})
    real.go()
    real.travel(601)
    real.go()
    run = real.run(schedule)
    assert (run.status, run.error) == ("failed", "The endpoint ERP is paused.")
    target_health.resume_endpoint(to.pk, actor=SYSTEM)
    actions.retry_run(run.pk, actor=ANA)
    real.go()
    assert statuses(real, [schedule]) == ["succeeded"]


def test_an_endpoint_that_is_gone_is_disabled(real: World, receiver: Receiver) -> None:
    to = endpoint(real, receiver.url)
    receiver.default.status = 410
    calls(real, receiver, "a", target={"endpoint": "ERP"})
    real.go()
    to.refresh_from_db()
    assert to.disabled_at is not None
    assert Event.objects.filter(kind="endpoint.disabled", subject_id=to.pk).exists()


def test_a_receiver_that_does_not_acknowledge_is_asked_again(real: World, receiver: Receiver) -> None:
    receiver.answer("a", body='{"ack": false, "delaySeconds": 90}', times=1)
    payload = {"url": receiver.url, "body": {"name": "a"}}
    schedule = real.schedule(kind="http", payload=payload, trigger_at=clock.now(), retry_schedule_s=[1])
    real.go()
    assert real.run(schedule).status == "retrying"
    real.travel(60)
    real.go()
    assert receiver.names == ["a"]
    real.travel(31)
    real.go()
    assert statuses(real, [schedule]) == ["succeeded"]


def test_endpoints_timeout_is_used_unless_the_payload_has_one(real: World, receiver: Receiver) -> None:
    endpoint(real, receiver.url, timeout_s=0.2)
    receiver.answer("a", after_s=1.0)
    receiver.answer("b", after_s=1.0)
    target = {"endpoint": "ERP"}
    (short,) = calls(real, receiver, "a", target=target)
    (long,) = calls(real, receiver, "b", target=target, timeout_s=25)
    real.go()
    assert statuses(real, [short, long]) == ["failed", "succeeded"]
    assert real.run(short).error == "no response within 0.2 s."


def test_connections_are_kept_between_batches(real: World, receiver: Receiver) -> None:
    for name in "ab":
        calls(real, receiver, name)
        real.go()
    first, second = receiver.visits
    assert first.peer == second.peer
    direct_delivery.close()
    calls(real, receiver, "c")
    real.go()
    assert receiver.visits[2].peer != first.peer


def test_slot_of_a_dead_worker_is_free_after_its_lease(real: World, receiver: Receiver) -> None:
    pool = limit(real, concurrency=1)
    until = clock.now() + timedelta(seconds=45)
    DirectRequest.objects.create(organization=real.organization, pool=pool, slot=1, lease_until=until)
    (schedule,) = calls(real, receiver, "a")
    real.go()
    assert (real.run(schedule).status, real.run(schedule).waiting_for) == ("retrying", "slot")
    real.travel(46)
    real.go()
    assert statuses(real, [schedule]) == ["succeeded"]
    assert not DirectRequest.objects.exists()


def test_canceled_run_frees_its_slot(real: World, receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dispatch.schedules.kinds.base.CANCEL_POLL_S", 0.05)
    limit(real, concurrency=1)
    receiver.hold("a")
    (schedule,) = calls(real, receiver, "a", timeout_s=25)
    real.execute()
    working = Elsewhere(real.work)
    receiver.count(1)
    actions.cancel_run(real.run(schedule).pk, actor=ANA)
    working.finish()
    real.settle()
    assert statuses(real, [schedule]) == ["cancelled"]
    assert not DirectRequest.objects.exists()


@pytest.mark.parametrize("error", [OperationalError("the connection is lost"), read_only_error()])
def test_request_in_progress_survives_a_database_error(
    real: World, receiver: Receiver, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """The third request can't be admitted for a moment: the others must not be closed and sent again."""
    limit(real, concurrency=2)
    receiver.hold_all(after=1)
    admit, asked = direct_delivery.admit_requests, []

    def fail_once(requests: Any) -> Any:
        asked.append(requests)
        if len(asked) == 2:
            receiver.let_all_go()
            raise error
        return admit(requests)

    monkeypatch.setattr(direct_delivery, "admit_requests", fail_once)
    schedules = calls(real, receiver, "a", "b", "c", timeout_s=25)
    real.go()
    assert statuses(real, schedules) == ["succeeded"] * 3
    assert sorted(receiver.names) == ["a", "b", "c"]
    assert not DirectRequest.objects.exists()


def test_held_run_of_a_deleted_schedule_is_canceled(real: World, receiver: Receiver) -> None:
    limit(real, is_paused=True)
    (schedule,) = calls(real, receiver, "a")
    real.execute()
    real.work()  # reported as held, and not applied yet
    schedule_services.delete_schedule(schedule.pk, actor=ANA)
    real.settle()
    assert statuses(real, [schedule]) == ["cancelled"]


def test_an_endpoint_deleted_meanwhile_does_not_stop_the_report(real: World, receiver: Receiver) -> None:
    to = endpoint(real, receiver.url)
    receiver.default.status = 500
    receiver.on_visit = lambda visit: Elsewhere(lambda: Target.objects.filter(endpoint=to).delete()).finish()
    (schedule,) = calls(real, receiver, "a", target={"endpoint": "ERP"})
    real.go()
    assert statuses(real, [schedule]) == ["failed"]
    assert not DirectRequest.objects.exists()


@pytest.mark.parametrize(
    ("deferred_s", "wait_s", "shortest", "longest"),
    [(0, 0, 1, 1.2), (100, 0, 25, 30), (86_000, 0, 300, 360), (0, 45, 45, 45), (86_000, 400, 400, 400)],
)
def test_deferrals_grow_with_the_wait(deferred_s: float, wait_s: float, shortest: float, longest: float) -> None:
    assert outcomes.deferral_s(deferred_s, wait_s, 0.0) == pytest.approx(shortest)
    assert outcomes.deferral_s(deferred_s, wait_s, 1.0) == pytest.approx(longest)


def test_run_whose_name_could_not_be_looked_up_is_held(
    real: World, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The organization's share of look-ups was in use: nothing was sent, and nobody failed."""

    async def busy(*args: Any, **fields: Any) -> None:
        raise client.LookupDelayed("the name was not looked up in time", sent=False)

    with monkeypatch.context() as patched:
        patched.setattr(client, "post", busy)
        (schedule,) = calls(real, receiver, "a")
        real.go()
    run = real.run(schedule)
    assert (run.status, run.attempt, run.waiting_for) == ("retrying", 1, "lookup")
    assert Target.objects.get().failures == 0
    real.travel(10)
    real.go()
    assert statuses(real, [schedule]) == ["succeeded"]


# --- Authentication of Dispatch ----------------------------------------------------------------------------------


@pytest.fixture
def tokens() -> Iterator[Receiver]:
    """A token server that numbers its tokens."""
    found = Receiver()

    def give(visit: Visit) -> None:
        found.default = Answer(200, json.dumps({"access_token": f"t{len(found.visits)}", "token_type": "Bearer"}))

    found.on_visit = give
    yield found
    found.close()


def oauth(tokens: Receiver) -> dict[str, Any]:
    return {"oauth_token_url": tokens.url, "oauth_client_id": "dispatch", "oauth_client_secret": "secret"}


def test_runs_carry_the_access_token_of_their_endpoint(real: World, receiver: Receiver, tokens: Receiver) -> None:
    endpoint(real, receiver.url, **oauth(tokens))
    schedules = []
    for name in "ab":  # two batches, one token
        schedules += calls(real, receiver, name, target={"endpoint": "ERP"})
        real.go()
    assert statuses(real, schedules) == ["succeeded"] * 2
    assert [visit.headers["authorization"] for visit in receiver.visits] == ["Bearer t1"] * 2
    assert len(tokens.visits) == 1
    assert all("webhook-signature" in visit.headers for visit in receiver.visits)


def test_run_that_waits_for_an_access_token_spends_no_attempt(
    real: World, receiver: Receiver, tokens: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    to = endpoint(real, receiver.url, timeout_s=25, **oauth(tokens))
    tokens.hold_all()
    (schedule,) = calls(real, receiver, "a", target={"endpoint": "ERP"})
    with monkeypatch.context() as patched:
        patched.setattr(http_exchange, "TOKEN_WAIT_S", 0.05)
        real.go()
    run = real.run(schedule)
    assert (run.status, run.attempt, run.waiting_for) == ("retrying", 1, "token_pending")
    assert not DirectRequest.objects.exists()
    assert not receiver.visits
    assert not Target.objects.filter(endpoint=to, failures__gt=0).exists()
    tokens.let_all_go()
    monkeypatch.setattr(http_exchange, "TOKEN_WAIT_S", PATIENCE)
    real.travel(http_exchange.TOKEN_DELAY_S + 1)
    real.go()
    assert statuses(real, [schedule]) == ["succeeded"]
    assert len(tokens.visits) == 1


def test_run_without_an_access_token_fails_with_the_reason(
    real: World, receiver: Receiver, tokens: Receiver
) -> None:
    tokens.on_visit, tokens.default = None, Answer(401, '{"error": "invalid_client"}')
    endpoint(real, receiver.url, **oauth(tokens))
    (schedule,) = calls(real, receiver, "a", target={"endpoint": "ERP"})
    real.go()
    run = real.run(schedule)
    reason = "No access token: The token server answered 401 (invalid_client)."
    assert (run.status, run.error) == ("failed", reason)
    assert not receiver.visits


def test_fetches_of_tokens_end_with_the_delivery_thread(
    real: World, receiver: Receiver, tokens: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_exchange, "TOKEN_WAIT_S", 0.05)
    endpoint(real, receiver.url, **oauth(tokens))
    tokens.hold_all()
    calls(real, receiver, "a", target={"endpoint": "ERP"})
    real.go()
    tokens.count(1)
    direct_delivery.close()  # while the token server is asked
    tokens.let_all_go()
    assert not receiver.visits


def test_runs_present_the_client_certificate_of_their_endpoint(
    real: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))
    receiver = Receiver(tls=authority.server_context())
    try:
        certificate, key = authority.issue("ERP")
        to = endpoint(real, receiver.url, client_certificate=certificate, client_key=key)
        (schedule,) = calls(real, receiver, "a", target={"endpoint": "ERP"})
        real.go()
        assert statuses(real, [schedule]) == ["succeeded"]
        assert [visit.client for visit in receiver.visits] == ["ERP"]
        Endpoint.objects.filter(pk=to.pk).update(client_certificate_until=clock.now() - timedelta(hours=1))
        (late,) = calls(real, receiver, "late", target={"endpoint": "ERP"})
        real.go()
        assert real.run(late).status == "failed"
        assert real.run(late).error.startswith("The client certificate expired on ")
        assert len(receiver.visits) == 1
    finally:
        receiver.close()
