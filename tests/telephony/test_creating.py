"""Who may be called, and what keeps a call from being made."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import connections, transaction

from accounts.models import Organization
from dispatch.telephony import services
from dispatch.telephony.models import Call
from tests.harness.calls import place_call
from tests.support import factories
from tests.support.waiting import wait_until
from tests.telephony.conftest import Caller, history, now_is

ANN = "+16025550101"


@pytest.mark.parametrize(
    ("phone", "reason"),
    [
        ("+442079460000", "country not allowed: GB"),
        ("+12425551234", "country not allowed: BS"),
        ("+19005551234", "premium-rate number not allowed"),
        ("+1602555", "not a phone number"),
        ("six oh two", "not a phone number"),
    ],
)
def test_forbidden_numbers_are_rejected(caller: Caller, phone: str, reason: str) -> None:
    with pytest.raises(services.CallNotAllowed) as refused:
        caller.create(phone)

    assert refused.value.reason == reason
    assert not Call.objects.exists()
    assert caller.create(ANN).line_slot == 1


def test_each_organization_has_its_own_countries(caller: Caller) -> None:
    Organization.objects.filter(pk=caller.organization.pk).update(allowed_countries=["GB"])
    caller.organization.refresh_from_db()

    assert caller.create("+442079460000").pk
    with pytest.raises(services.CallNotAllowed):
        caller.create(ANN)
    with pytest.raises(services.CallNotAllowed):
        caller.create("+449012345678")


def test_one_open_call_to_a_phone_in_an_organization(caller: Caller) -> None:
    call = caller.create(ANN)
    with pytest.raises(services.PhoneBusy):
        caller.create(ANN)

    services.hang_up(call.pk)

    again = caller.create(ANN)
    assert again.pk != call.pk
    assert again.line_slot == call.line_slot


def test_another_organization_may_call_the_same_phone(caller: Caller) -> None:
    caller.create(ANN)
    other = factories.organization()
    pool = factories.pool(other)
    factories.number(other, pool=pool)

    assert caller.create(ANN, organization=other, pool=pool).pk


def test_rejected_call_keeps_the_callers_transaction_usable(caller: Caller) -> None:
    caller.create(ANN)
    with transaction.atomic():
        for phone, error in ((ANN, services.PhoneBusy), ("+449012345678", services.CallNotAllowed)):
            with pytest.raises(error):
                caller.create(phone)
        call = caller.create("+16025550102")

    assert Call.objects.get(pk=call.pk).status == "created"


def test_the_same_attempt_is_the_same_call(caller: Caller) -> None:
    first = caller.create(ANN, subject_id=9)

    assert caller.create(ANN, subject_id=9).pk == first.pk
    services.hang_up(first.pk)
    assert caller.create(ANN, subject_id=9).pk == first.pk
    second = caller.create(ANN, subject_id=9, attempt=2)
    assert list(services.calls_of("test", 9)) == [second, first]
    assert services.open_call_of("test", 9) == second
    assert services.open_call_of("test", 10) is None


def test_a_call_belongs_into_a_transaction(caller: Caller) -> None:
    with pytest.raises(RuntimeError):
        services.create_call(
            organization=caller.organization,
            purpose="test",
            subject_id=1,
            attempt=1,
            to_phone=ANN,
            pool=caller.pool,
            ring_timeout_s=20,
            time_limit_s=60,
            place_by=caller.organization.created_at,
        )


def test_a_call_whose_time_has_passed_is_never_placed(caller: Caller) -> None:
    call = caller.create(ANN, place_by=caller.organization.created_at)

    place_call(call.pk)

    assert now_is(call, "not_placed").error_message == "its deadline had passed"
    assert history(call) == ["created", "not_placed"]
    wait_until(lambda: caller.listener.told(call) == ["not_placed"])
    assert caller.sim.asked_for(ANN) == 0


def _at_once(caller: Caller, **wanted: object) -> list[str]:
    """Create the same call eight times at the same moment and return the result of each."""

    def one(i: int) -> str:
        try:
            return str(caller.create(ANN, **{name: value(i) for name, value in wanted.items()}).pk)  # type: ignore[operator]
        except services.PhoneBusy:
            return "busy"
        finally:
            connections.close_all()

    with ThreadPoolExecutor(8) as crowd:
        return list(crowd.map(one, range(8)))


def test_many_at_once_to_one_phone_are_one_call(caller: Caller) -> None:
    caller.number.max_channels = 10
    caller.number.save()
    outcomes = _at_once(caller, subject_id=lambda i: 100 + i)

    assert outcomes.count("busy") == 7
    assert Call.objects.count() == 1
    lowest_free = 2 if Call.objects.get().line_slot == 1 else 1
    assert caller.create("+16025550102").line_slot == lowest_free, "the others gave their lines back"


def test_many_at_once_for_one_attempt_are_one_call(caller: Caller) -> None:
    caller.number.max_channels = 10  # while Redis is being rebuilt each of them tries a separate line
    caller.number.save()
    outcomes = _at_once(caller, subject_id=lambda i: 100)

    assert set(outcomes) - {"busy"} == {str(Call.objects.get().pk)}
