"""One endpoint that cannot be decrypted, or one response that breaks the parser, does not affect others."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection

from dispatch.core import clock
from dispatch.core.events import SYSTEM
from dispatch.core.models import Event
from dispatch.outbox import loops
from dispatch.outbox.event_reader import create_messages
from dispatch.outbox.models import Attempt, Endpoint, Message, Target
from dispatch.outbox.rules import responses
from dispatch.outbox.services import attempts, target_health
from tests.harness.outbox import World


def spoil(endpoint: Endpoint, column: str = "secret") -> None:
    """Corrupt the column, as a dropped key would."""
    with connection.cursor() as cursor:
        cursor.execute(f"UPDATE outbox_endpoint SET {column} = 'gAAAAAB-unreadable' WHERE id = %s", [endpoint.pk])


@pytest.mark.parametrize("column", ["secret", "headers"])
def test_an_unreadable_endpoint_fails_alone(world: World, column: str) -> None:
    bad, good = world.endpoint("bad"), world.endpoint("good")
    spoil(bad, column)
    broken = world.send_one(bad, "broken", mode="IMMEDIATE")
    fine = world.send(good, *"abcde", mode="IMMEDIATE")
    world.poll()
    world.start_router()
    world.becomes(broken, "ERROR")
    world.all_end()
    assert world.statuses(fine) == ["COMPLETED"] * 5
    assert sorted(world.receiver.names) == list("abcde")
    attempt = Attempt.objects.get(message=broken)
    assert (attempt.outcome, attempt.error_class) == ("permanent", "configuration")
    assert "FIELD_ENCRYPTION_KEYS" in attempt.error


@pytest.mark.parametrize("what", ["an older row", "nothing"])
def test_an_attempt_uses_the_row_that_it_read_whatever_other_threads_store(
    world: World, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    class SharedCache(dict[int, Any]):
        """Holds what another thread stores, or removes, right after this thread has stored a row."""

        def __setitem__(self, key: int, value: Any) -> None:
            if what == "an older row":
                super().__setitem__(key, (value[0], older))

    erp = world.endpoint()
    older = Endpoint(pk=erp.pk, url="https://former.example/")
    monkeypatch.setattr(attempts, "_known", SharedCache())
    message = world.send_one(erp, "a")
    world.poll()
    (call,), _ = attempts.start_attempts([(message, 1)])
    assert isinstance(call, attempts.DeliveryAttempt)
    assert call.url == world.receiver.url


def test_the_event_reader_does_not_decrypt(world: World) -> None:
    from dispatch.core.models import Event

    bad, good = world.endpoint("bad", event_types=["*"]), world.endpoint("good", event_types=["*"])
    spoil(bad)
    target_health.pause_endpoint(good.pk, "a test", actor=SYSTEM)
    create_messages(list(Event.objects.filter(kind="endpoint.paused")))
    assert set(Message.objects.values_list("endpoint_id", flat=True)) == {bad.pk, good.pk}


def test_an_unreadable_endpoint_is_paused_and_disabled_like_any_other(world: World) -> None:
    bad = world.endpoint("bad")
    spoil(bad)
    assert target_health.pause_endpoint(bad.pk, "", actor=SYSTEM)
    now = clock.now()
    Target.objects.create(
        organization=world.organization, endpoint=bad, failed_attempts=10, failed_messages=2,
        first_failed_at=now, last_failed_at=now,
    )  # fmt: skip
    world.travel(3 * 86_400 + 60)
    Target.objects.update(last_failed_at=clock.now())
    loops.recover_pointers()
    assert Endpoint.objects.filter(disabled_at__isnull=False).count() == 1


@pytest.mark.parametrize(
    "body",
    ['{"ack": false, "delaySeconds": 1' + "0" * 400 + "}", '{"ack": ' + "[" * 100_000],
    ids=["huge", "deep"],
)
def test_an_answer_that_breaks_the_parser_is_a_failure(world: World, body: str) -> None:
    world.receiver.answer("a", 200, body)
    message = world.send_one(world.endpoint(retry_schedule_s=[]), "a")
    fine = world.send_one(world.endpoint("other"), "b")
    world.start()
    world.becomes(message, "ERROR")
    world.becomes(fine, "COMPLETED")
    attempt = Attempt.objects.get(message=message)
    assert (attempt.outcome, attempt.error_class) == ("failed", "answer")
    assert "cannot be read" in attempt.error


def test_error_while_evaluating_a_response_is_a_failure(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: object, **kwargs: object) -> responses.Verdict:
        raise KeyError("on purpose")

    monkeypatch.setattr(responses, "judge_response", broken)
    message = world.send_one(world.endpoint(retry_schedule_s=[]), "a")
    world.start()
    world.becomes(message, "ERROR")
    attempt = Attempt.objects.get(message=message)
    assert (attempt.outcome, attempt.error_class) == ("failed", "internal")
    assert "on purpose" in attempt.error


def test_error_in_dispatch_says_nothing_about_the_endpoint(
    world: World, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    settings.OUTBOX_CIRCUIT_FAILURES = 2
    judge = responses.judge_response

    def breaks_in_the_first_calls(*args: Any, **kwargs: Any) -> responses.Verdict:
        if len(world.receiver.visits) <= 4:
            raise KeyError("on purpose")
        return judge(*args, **kwargs)

    monkeypatch.setattr(responses, "judge_response", breaks_in_the_first_calls)
    endpoint = world.endpoint(retry_schedule_s=[])
    failing = [world.send_one(endpoint, f"x{n}", group=f"{n}") for n in range(4)]
    world.start()
    for message in failing:
        world.becomes(message, "ERROR")
    fine = world.send_one(endpoint, "fine", group="fine")
    world.becomes(fine, "COMPLETED")
    assert not Event.objects.filter(kind="endpoint.circuit_opened").exists()
    endpoint.target.refresh_from_db()
    assert endpoint.target.open_until is None
