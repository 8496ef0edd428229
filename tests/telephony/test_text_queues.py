"""A number whose queue of texts overflows at the provider, and an account that belongs to a region."""

from __future__ import annotations

from collections.abc import Callable

from dispatch.core import clock
from dispatch.core.models import Event
from dispatch.telephony import number_health, providers, services
from dispatch.telephony.providers.base import Rejected
from tests.phones import answer
from tests.telephony.conftest import ANN, Caller, create_text, now_is, text_is

FULL = {"text_segments_per_second": 0.02, "text_queue_s": 20}


def test_texts_wait_here_while_the_providers_queue_is_full(texter: Caller, step: Callable[[str], object]) -> None:
    texter.sim.set_account(**FULL)
    first, second = create_text(texter), create_text(texter, subject_id=2)
    services.send_text(first.pk)
    waiting = services.send_text(second.pk)
    assert waiting.status == "created", "429 and 21611: it was not taken"
    assert waiting.not_before > clock.now()
    texter.sim.set_account(text_segments_per_second=0, text_queue_s=36_000)
    clock.travel(61)
    step("texts")
    text_is(second, "delivered")
    assert len(texter.sim.messages(to=ANN)) == 2


def test_text_lost_in_a_full_queue_is_failed_and_blames_nobody(texter: Caller) -> None:
    texter.sim.set_account(**FULL, text_overflow=30001)
    services.send_text(create_text(texter).pk)
    lost = text_is(services.send_text(create_text(texter, subject_id=2).pk), "failed")
    assert lost.error_code == "30001"
    assert not Event.objects.filter(kind="account.texts_refused").exists(), "nothing that admins could do"
    assert services.may_text(texter.organization.pk, ANN), "the phone is not at fault"
    assert not number_health.text_health(texter.number).blocked


def test_account_of_a_region_is_asked_there(caller: Caller) -> None:
    caller.sim.set_account(region="ie1")
    refused = providers.for_account(caller.account).check_account()
    assert isinstance(refused, Rejected)
    assert (refused.code, refused.is_account_wide) == ("20003", True)

    caller.account.region, caller.account.edge = "ie1", "dublin"
    caller.account.save(update_fields=["region", "edge"])
    assert providers.for_account(caller.account).check_account() is None
    caller.sim.phone(ANN).will(answer(press="1"))
    now_is(caller.call(ANN), "completed")
    assert caller.listener.keys
