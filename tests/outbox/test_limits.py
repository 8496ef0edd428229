"""Contract 6 to 8 (docs/guides/outbox.md): pools, deferrals and retries, circuit breaker, disabled endpoints."""

from __future__ import annotations

from datetime import timedelta

import pytest

from dispatch.capacity.models import DispatchPool
from dispatch.core import clock
from dispatch.core.events import SYSTEM
from dispatch.core.models import Event
from dispatch.outbox import poller
from dispatch.outbox.models import Attempt, Message, Target
from dispatch.outbox.rules import admission, responses
from dispatch.outbox.services import attempts, target_health
from dispatch.outbox.services.attempt_results import AttemptResult, finish_attempts
from dispatch.outbox.services.scheduling import claim_next
from tests.harness.outbox import World
from tests.support.waiting import wait_until


def test_concurrency_holds_over_all_routers_while_it_is_changed(
    world: World,
) -> None:
    # Contract 6
    erp = world.endpoint(timeout_s=30)
    world.pool.concurrency = 6
    world.pool.save()
    world.receiver.default.after_s = 0.02
    for n in range(120):
        world.send(erp, f"{n}", group=f"{n}")
    world.receiver.hold_all(after=30)  # else all could be over before the limit is changed
    world.start(pollers=3, routers=3)
    world.receiver.count(30)
    assert world.receiver.most_open <= 6
    world.pool.concurrency = 2
    world.pool.save()
    world.receiver.let_all_go()
    world.receiver.hold_all(after=25)
    seen = len(world.receiver.visits)
    wait_until(lambda: Message.objects.filter(status="PROCESSING").count() <= 2)
    world.receiver.most_open = 0
    world.receiver.count(seen + 20)
    assert world.receiver.most_open <= 2
    world.pool.concurrency = 12
    world.pool.save()
    world.receiver.most_open = 0
    wait_until(lambda: world.receiver.most_open > 2, message="no more come at once than before")
    world.receiver.let_all_go()
    world.all_end()
    assert world.receiver.most_open <= 12
    assert Attempt.objects.count() == 120
    assert set(Message.objects.values_list("attempts", flat=True)) == {1}


@pytest.mark.parametrize("rate", [1, 7, 60, 600])
def test_no_60_s_window_exceeds_the_rate_plus_the_burst(rate: int) -> None:
    # Contract 6
    now = clock.now()
    full_at, taken = None, []
    for step in range(4000):
        at = now + timedelta(seconds=step * 0.05)
        count = admission.available_tokens(rate, full_at, at)
        if count:
            full_at = admission.take_tokens(rate, full_at, at, count)
            taken += [at] * count
    for position, first in enumerate(taken):
        inside = [at for at in taken[position:] if at < first + timedelta(seconds=60)]
        assert len(inside) <= rate + admission.burst_size(rate)
    assert len(taken) >= rate * 3  # and it gives what it promises, in 200 s


@pytest.mark.parametrize("rate", [1, 7, 60, 6000])
def test_poll_waits_for_a_token_that_no_queued_message_needs(rate: int) -> None:
    # Contract 6
    now, burst = clock.now(), admission.burst_size(rate)
    for spent in range(min(burst, 10) + 1):
        full_at = admission.take_tokens(rate, None, now, spent)
        for queued in range(burst - spent, burst):
            pool = admission.Pool(1, 10_000, rate, False, full_at, queued, queued, now)
            again_at = admission.pool_headroom(pool, now).again_at
            assert again_at is not None
            assert again_at > now
            assert admission.available_tokens(rate, full_at, again_at) == queued + 1
            before = again_at - timedelta(seconds=30 / rate)
            assert admission.available_tokens(rate, full_at, before) <= queued


def test_poll_waits_while_messages_that_do_not_start_need_all_tokens(world: World) -> None:
    # Contract 6
    DispatchPool.objects.filter(pk=world.pool.pk).update(rate_per_minute=6000, concurrency=1000)
    erp = world.endpoint()
    for batch in range(7):
        world.send(erp, *[f"{n}" for n in range(100)], group=f"{batch}", mode="IMMEDIATE")
    world.poll()
    assert Message.objects.filter(status="QUEUED").count() == admission.burst_size(6000)
    now = clock.now()
    _, state = claim_next(now)
    assert state.again_at is not None
    assert state.again_at - now >= timedelta(seconds=1)


def test_a_clock_ahead_of_the_databases_gains_no_tokens(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    # Contract 6
    DispatchPool.objects.filter(pk=world.pool.pk).update(rate_per_minute=6)
    ids = world.send(world.endpoint(), "a", "b", mode="IMMEDIATE")
    world.poll()
    (call, *_), _ = attempts.start_attempts([(ids[0], 1)])
    assert isinstance(call, attempts.DeliveryAttempt)
    now = clock.now
    monkeypatch.setattr("dispatch.outbox.poller.clock.now", lambda: now() + timedelta(seconds=10.5))
    wish = poller.poll_once()
    assert wish is not None
    assert 0 < wish <= 10
    assert world.status(ids[1]) == "PENDING"


def test_rate_limits_real_attempts_and_waiting_spends_nothing(world: World) -> None:
    # Contract 6
    erp = world.endpoint()
    world.pool.rate_per_minute = 1  # one, then one a minute
    world.pool.save()
    ids = [world.send_one(erp, f"{n}", group=f"{n}") for n in range(5)]
    world.start(routers=2)
    world.receiver.count(1)
    world.rests()
    assert len(world.receiver.visits) == 1
    world.travel(60.1)
    world.receiver.count(2)
    world.rests()
    assert len(world.receiver.visits) == 2
    waiting = Message.objects.filter(pk__in=ids, status="PENDING")
    assert list(waiting.values_list("attempts", "calls", "pool_slot")) == [(0, 0, None)] * 3
    for _ in range(3):
        world.travel(60.1)
        seen = len(world.receiver.visits)
        world.receiver.count(seen + 1)
    world.all_end()


def test_pool_paused_after_publishing_requeues_without_slot_or_attempt(
    world: World,
) -> None:
    # Contract 6
    erp = world.endpoint()
    message = world.send_one(erp, "a")
    world.poll()
    world.pool.is_paused = True
    world.pool.save()
    world.start()
    wait_until(lambda: world.status(message) == "PENDING")
    found = world.message(message)
    assert (found.attempts, found.calls, found.pool_slot, found.waiting_for) == (0, 0, None, "pool paused")
    world.pool.is_paused = False
    world.pool.save()
    world.all_end()
    assert world.receiver.names == ["a"]


@pytest.mark.parametrize(
    ("status", "body", "headers", "after_s"),
    [
        (429, "", {"Retry-After": "400"}, 400),
        (429, "", {}, 30),
        (200, '{"ack": false, "delaySeconds": 150}', {}, 150),
        (200, '{"ack": false}', {}, 30),
    ],
)
def test_deferral_spends_no_retry_and_waits_as_requested(
    world: World, status: int, body: str, headers: dict[str, str], after_s: float
) -> None:
    # Contract 7
    erp = world.endpoint(retry_schedule_s=[])
    world.receiver.answer("a", status, body, times=3, **{k.replace("-", "_"): v for k, v in headers.items()})
    a, b = world.send(erp, "a", "b")
    world.start()
    for turn in range(3):
        world.receiver.count(turn + 1)
        world.rests()
        found = world.message(a)
        assert (found.status, found.attempts, found.calls) == ("PENDING", 0, turn + 1)
        assert found.due_at >= _last_call(a).ended_at + timedelta(seconds=after_s)
        assert world.status(b) == "PENDING"
        world.travel(after_s)
    world.all_end()
    assert world.receiver.names == ["a"] * 4 + ["b"]
    assert list(Attempt.objects.filter(message=a).values_list("outcome", "is_spent")) == [
        ("deferred", False),
        ("deferred", False),
        ("deferred", False),
        ("delivered", True),
    ]


def test_retries_follow_the_endpoints_schedule_then_error(world: World) -> None:
    # Contract 7
    erp = world.endpoint(retry_schedule_s=[600, 1200], permanent_codes=[410])
    world.receiver.answer("a", 503)
    world.receiver.answer("gone", 410)
    message = world.send_one(erp, "a")
    gone = world.send_one(erp, "gone", group="h")
    world.start()
    world.becomes(gone, "ERROR")
    for turn, wait in enumerate([600, 1200]):
        world.receiver.count(turn + 2)
        world.rests()
        assert world.status(message) == "PENDING"
        due_at = world.message(message).due_at
        assert due_at >= _last_call(message).ended_at + timedelta(seconds=wait)
        world.travel((due_at - clock.now()).total_seconds())
    found = world.becomes(message, "ERROR")
    assert (found.attempts, found.calls) == (3, 3)
    first = Attempt.objects.filter(message=message).first()
    assert first is not None
    assert (first.status_code, first.error_class, first.outcome) == (503, "http_503", "failed")


def _last_call(message: int) -> Attempt:
    return Attempt.objects.filter(message=message).latest("id")


@pytest.mark.parametrize(("asked_s", "waits_s"), [("400", 400), ("1", 5), ("9999999", 86_400)])
def test_a_retry_waits_at_least_as_long_as_the_receiver_asks(world: World, asked_s: str, waits_s: float) -> None:
    # Contract 7
    erp = world.endpoint(retry_schedule_s=[5])
    world.receiver.answer("a", 503, times=1, Retry_After=asked_s)
    message = world.send_one(erp, "a")
    world.start()
    world.receiver.count(1)
    world.rests()
    found = world.message(message)
    assert (found.status, found.attempts) == ("PENDING", 1)
    assert waits_s <= (found.due_at - _last_call(message).ended_at).total_seconds() < waits_s + 5


def test_jitter_makes_a_retry_later_never_earlier() -> None:
    # Contract 7
    assert responses.retry_delay_s([10, 20], 1, 0.5, 0.0) == 10
    assert responses.retry_delay_s([10, 20], 2, 0.5, 1.0) == 30
    assert responses.retry_delay_s([10, 20], 3, 0.5, 1.0) is None
    assert responses.retry_delay_s([], 1, 0.5, 1.0) is None


def test_unreachable_target_fails_and_forbidden_target_is_an_error(world: World, settings: object) -> None:
    # Contract 7
    slow = world.endpoint("slow", timeout_s=0.3, retry_schedule_s=[600])
    gone = world.endpoint("gone", url="http://127.0.0.1:1024/", retry_schedule_s=[600])
    inside = world.endpoint("inside", url="http://169.254.169.254/latest/meta-data")
    world.receiver.hold("slow")
    ids = [world.send_one(endpoint, "slow") for endpoint in (slow, gone, inside)]
    world.start()
    wait_until(lambda: Attempt.objects.count() == 3)
    world.rests()
    found = dict(Attempt.objects.values_list("message_id", "error_class"))
    assert [found[i] for i in ids] == ["timeout", "unreachable", "refused"]
    assert world.statuses(ids) == ["PENDING", "PENDING", "ERROR"]


def test_circuit_opens_probes_and_closes_without_affecting_others(world: World, settings: object) -> None:
    # Contract 8
    settings.OUTBOX_CIRCUIT_FAILURES = 3  # type: ignore[attr-defined]
    settings.OUTBOX_CIRCUIT_OPEN_S = 300.0  # type: ignore[attr-defined]
    ill, well = (
        world.endpoint("ill", retry_schedule_s=[200, 300]),
        world.endpoint("well", url=world.receiver.url + "/well"),
    )
    world.receiver.default.status = 500
    world.receiver.answer("fine", 200)
    failing = [world.send_one(ill, f"x{n}", group=f"{n}") for n in range(3)]
    world.start()
    world.receiver.count(3)
    wait_until(lambda: Event.objects.filter(kind="endpoint.circuit_opened").exists())
    waiting = [world.send_one(ill, f"y{n}", group=f"y{n}") for n in range(5)]
    fine = world.send_one(well, "fine")
    world.becomes(fine, "COMPLETED")
    world.rests()
    assert len(world.receiver.visits) == 4
    assert set(Message.objects.filter(pk__in=waiting).values_list("attempts", "calls")) == {(0, 0)}

    world.travel(301)  # one probe, which fails: open again, for longer
    world.receiver.count(5)
    world.rests()
    ill.target.refresh_from_db()
    assert ill.target.open_until - clock.now() > timedelta(seconds=400)
    assert len(world.receiver.visits) == 5

    world.receiver.heal()
    world.travel(601)
    wait_until(lambda: Event.objects.filter(kind="endpoint.circuit_closed").exists())
    world.all_end()
    assert world.statuses(failing + waiting) == ["COMPLETED"] * 8
    ill.target.refresh_from_db()
    assert (ill.target.failures, ill.target.failing_since) == (0, None)


def test_probe_without_a_slot_is_made_as_soon_as_one_is_free(world: World) -> None:
    # Contract 8
    ill, busy = world.endpoint("ill"), world.endpoint("busy")
    probe, other = world.send_one(ill, "probe"), world.send_one(busy, "other")
    world.poll()
    assert isinstance(
        attempts.start_attempts([(other, 1)])[0][0], attempts.DeliveryAttempt
    )  # it has the only slot
    world.pool.concurrency = 1
    world.pool.save()
    ill.target.open_until = clock.now() - timedelta(seconds=1)
    ill.target.save()
    assert attempts.start_attempts([(probe, 1)])[0] == [attempts.PointerRefused.PUT_BACK]
    ill.target.refresh_from_db()
    assert ill.target.probe_until is None


def test_probe_whose_name_was_not_looked_up_is_made_again_at_once(world: World) -> None:
    ill = world.endpoint("ill")
    probe = world.send_one(ill, "probe")
    world.poll()
    opened = clock.now() - timedelta(seconds=1)
    Target.objects.filter(pk=ill.target.pk).update(failures=5, openings=1, open_until=opened)
    call = attempts.start_attempts([(probe, 1)])[0][0]
    assert isinstance(call, attempts.DeliveryAttempt)
    assert call.is_probe
    ill.target.refresh_from_db()
    assert ill.target.probe_until is not None
    verdict = responses.Verdict(responses.DEFERRED, 5.0, responses.LOOKUP, "Its name was not looked up.")
    now = clock.now()
    finish_attempts([AttemptResult(call, verdict, now, now, 0.0)])
    ill.target.refresh_from_db()
    assert ill.target.probe_until is None
    assert (ill.target.failures, ill.target.openings, ill.target.open_until) == (5, 1, opened)
    assert (ill.target.deferring_since, ill.target.failing_since) == (None, None)


def test_pointers_in_transit_when_the_circuit_opens_are_requeued_unspent(world: World) -> None:
    # Contract 8
    erp = world.endpoint()
    message = world.send_one(erp, "a")
    world.poll()
    erp.target.open_until = clock.now() + timedelta(seconds=300)
    erp.target.save()
    world.start()
    wait_until(lambda: world.status(message) == "PENDING")
    assert world.message(message).attempts == 0
    assert world.receiver.names == []
    world.travel(301)
    world.becomes(message, "COMPLETED")


def test_endpoint_failing_for_days_is_disabled_and_loses_nothing(world: World) -> None:
    # Contract 8
    erp = world.endpoint(retry_schedule_s=[])
    world.receiver.default.status = 500
    failed = world.send_one(erp, "a", group="a")
    world.start()
    world.becomes(failed, "ERROR")
    for n in range(12):
        assert target_health.disable_failing() == 0
        world.travel(6 * 3600 + 60)
        world.becomes(world.send_one(erp, f"{n}", group=f"{n}"), "ERROR")
    assert target_health.disable_failing() == 1
    erp.refresh_from_db()
    assert erp.disabled_at is not None
    notice = Event.objects.get(kind="endpoint.disabled")
    assert (notice.subject_id, notice.data["name"]) == (erp.pk, "ERP")

    kept = world.send_one(erp, "b", group="b")
    world.poll()
    assert world.status(kept) == "PENDING"
    world.receiver.heal()
    assert target_health.enable_endpoint(erp.pk, actor=SYSTEM) is True
    world.becomes(kept, "COMPLETED")
    world.act("retry", failed)
    world.becomes(failed, "COMPLETED")
