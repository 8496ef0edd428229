"""A repeated request gets the first answer, independent of sender and time."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import connection, connections
from rest_framework.exceptions import ValidationError

from accounts import loops
from accounts.models import Organization
from dispatch.core import clock
from dispatch.core.api import idempotency
from dispatch.core.models import RememberedAnswer
from dispatch.technicians.models import Skill
from tests.support import factories as make
from tests.support.waiting import PATIENCE, wait_until

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def organization() -> Organization:
    return make.organization()


class Work:
    """Create one skill per run, and return it."""

    def __init__(self, organization: Organization) -> None:
        self.organization, self.runs = organization, 0

    def __call__(self) -> tuple[int, dict]:
        self.runs += 1
        return 202, {"skill": make.skill(self.organization).pk}


def send(organization: Organization, work, key: str = "k-1", body=None, endpoint: str = "submissions"):
    return idempotency.run_once(organization.pk, endpoint, key, body if body is not None else {"a": 1}, work)


def test_repeated_request_gets_the_first_response(organization):
    work = Work(organization)
    first = send(organization, work)
    again = send(organization, work)
    assert first == (202, {"skill": first[1]["skill"]}, False)
    assert again == (202, first[1], True)
    assert work.runs == 1


def test_the_order_of_members_does_not_matter(organization):
    work = Work(organization)
    send(organization, work, body={"a": 1, "b": [1, 2]})
    assert send(organization, work, body={"b": [1, 2], "a": 1})[2] is True


def test_same_key_with_another_body_is_rejected(organization):
    work = Work(organization)
    send(organization, work)
    with pytest.raises(idempotency.KeyReused) as refused:
        send(organization, work, body={"a": 2})
    assert (refused.value.status_code, refused.value.get_codes()) == (422, "idempotency_key_reused")
    assert work.runs == 1


def test_keys_are_scoped_to_organization_and_endpoint(organization):
    other = make.organization()
    runs = [
        send(organization, Work(organization)),
        send(other, Work(other), body={"a": 2}),
        send(organization, Work(organization), endpoint="messages", body={"a": 3}),
    ]
    assert [replayed for _, _, replayed in runs] == [False, False, False]


def test_a_first_attempt_that_fails_leaves_nothing(organization):
    def fail() -> tuple[int, dict]:
        make.skill(organization, "never-there")
        raise RuntimeError("lost")

    def refuse() -> tuple[int, dict]:
        make.skill(organization, "never-there-either")
        return 409, {"detail": "no"}

    with pytest.raises(RuntimeError):
        send(organization, fail)
    assert send(organization, refuse) == (409, {"detail": "no"}, False)
    assert RememberedAnswer.objects.count() == 0
    work = Work(organization)
    send(organization, work)
    assert work.runs == 1
    assert not Skill.objects.filter(code__startswith="never").exists()


def in_threads(count: int, run):
    def closing(n: int):
        try:
            return run(n)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(count) as threads:
        return list(threads.map(closing, range(count)))


def test_concurrent_repeats_wait_for_the_first_response(organization):
    everybody = threading.Barrier(8)
    runs: list[int] = []

    def work() -> tuple[int, dict]:
        runs.append(1)
        return 202, {"skill": make.skill(organization).pk}

    def run(n: int):
        everybody.wait(timeout=60)
        return send(organization, work)

    answers = in_threads(8, run)
    assert len(runs) == 1
    assert len({answer[1]["skill"] for answer in answers}) == 1
    assert sorted(answer[2] for answer in answers) == [False] + [True] * 7


def test_repeat_that_waited_for_a_failure_runs_as_the_first(organization):
    begun = threading.Event()

    def somebody_waits() -> bool:
        with connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'transactionid'")
            return cursor.fetchone()[0] > 0

    def fails_late() -> tuple[int, dict]:
        begun.set()
        wait_until(somebody_waits, message="the repeat did not wait for the first")
        raise RuntimeError("lost")

    def run(n: int):
        if n == 0:
            with pytest.raises(RuntimeError):
                send(organization, fails_late)
            return None
        assert begun.wait(PATIENCE)
        return send(organization, Work(organization))

    assert in_threads(2, run)[1][2] is False
    assert RememberedAnswer.objects.get().status_code == 202


def test_response_is_kept_for_seven_days(organization):
    work = Work(organization)
    send(organization, work)
    clock.travel(7 * 86400 - 300)
    assert send(organization, work)[2] is True
    clock.travel(301)
    assert send(organization, work, body={"another": "body"})[2] is False, "the key is free again"
    assert work.runs == 2


def test_old_responses_are_deleted_in_small_batches(organization, monkeypatch):
    monkeypatch.setattr(loops, "BATCH", 2)
    for n in range(3):
        send(organization, Work(organization), key=f"old-{n}")
    clock.travel(8 * 86400)
    send(organization, Work(organization), key="new")
    assert loops.delete_expired() is not None, "there is more: again soon"
    assert RememberedAnswer.objects.count() == 2
    assert loops.delete_expired() is None
    assert [row.key for row in RememberedAnswer.objects.all()] == ["new"]


@pytest.mark.parametrize("key", ["x" * 256, "with space", "ümlaut", "line\nbreak"])
def test_malformed_key_is_rejected(organization, key):
    with pytest.raises(ValidationError):
        send(organization, Work(organization), key=key)


def test_requests_without_a_key_are_independent(organization):
    work = Work(organization)
    assert send(organization, work, key="")[2] is False
    assert send(organization, work, key="")[2] is False
    assert (work.runs, RememberedAnswer.objects.count()) == (2, 0)
