"""A phone that opts out is not called from that moment on, whatever is in progress."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from django.db import OperationalError, connection, connections
from django.test import Client

from dispatch.core import clock, fault_injection
from dispatch.core.events import SYSTEM
from dispatch.core.models import Event
from dispatch.leads.models import DoNotCall, DoNotCallEverywhere
from dispatch.leads.services import do_not_call
from dispatch.telephony import webhook_urls
from dispatch.telephony.models import Call, OptOut
from dispatch.telephony.services import bulk as telephony
from dispatch.telephony.services import sms
from tests.harness.leads import Floor
from tests.phones import Simulator, ignore
from tests.support import factories
from tests.support.waiting import wait_until

ANN, BOB = "+16025550101", "+16025550102"
# A call rings for 30 real seconds, so that a slow machine ends it in time.
RINGS_S = 600


@pytest.fixture
def floor(sim: Simulator, app_url: str, settings: Any) -> Iterator[Floor]:
    settings.SIMULATOR_URL = sim.base_url
    sim.others_will(ignore())
    made = Floor("twilio", lines=3, account_sid=sim.account_sid, auth_token=sim.auth_token)
    yield made
    made.stop()


def by_list(floor: Floor) -> None:
    do_not_call.add_to_list(floor.organization.pk, ANN, source="api", actor=SYSTEM)


def by_text(floor: Floor) -> None:
    sms.opt_out(floor.organization.pk, ANN, source=OptOut.Source.STOP)


def everywhere(floor: Floor) -> None:
    admin = Client()
    admin.force_login(factories.user("Root", is_superuser=True))
    answer = admin.post("/admin/leads/donotcalleverywhere/add/", {"phone": ANN, "note": ""})
    assert answer.status_code == 302, answer.content
    assert DoNotCallEverywhere.objects.filter(phone=ANN).exists()


def waits_for_a_lock() -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")
        return bool(cursor.fetchone()[0])


WAYS = pytest.mark.parametrize("opt_out", [by_list, by_text, everywhere])


class InThread(threading.Thread):
    def __init__(self, work: Callable[[], None]) -> None:
        super().__init__(daemon=True)
        self._work = work
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            self._work()
        except Exception as error:
            self.error = error
        finally:
            connections.close_all()


@WAYS
def test_an_opt_out_during_a_claim_ends_its_call(
    floor: Floor, sim: Simulator, opt_out: Callable[[Floor], None]
) -> None:
    """The claim has read the lists, and commits after the opt-out has begun."""
    floor.add(ANN)
    floor.promote()
    opting_out = InThread(lambda: opt_out(floor))

    def opt_out_now() -> None:
        opting_out.start()
        # It waits for this claim, or is done and too early.
        wait_until(lambda: not opting_out.is_alive() or waits_for_a_lock())

    with fault_injection.arm_crash_point("leads.claim.before_commit", opt_out_now):
        claimed = floor.claim()
    opting_out.join()
    assert opting_out.error is None
    assert len(claimed.calls) == 1
    assert Call.objects.get().cancel_requested_at is not None


@WAYS
def test_an_opt_out_before_the_request_prevents_it(
    floor: Floor, sim: Simulator, opt_out: Callable[[Floor], None]
) -> None:
    ann, bob = floor.add(ANN, BOB)
    once = threading.Event()

    def opt_out_once() -> None:
        if not once.is_set():
            once.set()
            thread = InThread(lambda: opt_out(floor))
            thread.start()
            thread.join()
            assert thread.error is None

    with fault_injection.arm_crash_point("leads.claim.committed", opt_out_once):
        floor.start()
        wait_until(lambda: Call.objects.filter(ended_at=None, sid__isnull=False, to_phone=BOB).exists())
        wait_until(lambda: floor.status(ann) != "processing")
    assert sim.creates_to(ANN) == 0
    assert Call.objects.get(to_phone=ANN).status == "canceled"
    assert floor.status(bob) == "processing"


def test_an_opt_out_is_noticed_if_the_calls_of_a_batch_cannot_be_checked_together(
    floor: Floor, sim: Simulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    ann, bob = floor.add(ANN, BOB)
    floor.promote()
    checks: list[int] = []
    check = telephony.cancelled

    def check_each_alone(call_ids: Sequence[int]) -> list[bool]:
        checks.append(len(call_ids))
        if len(call_ids) > 1:
            raise OperationalError("The connection was lost.")
        return check(call_ids)

    monkeypatch.setattr(telephony, "cancelled", check_each_alone)
    with fault_injection.arm_crash_point("leads.claim.committed", lambda: by_list(floor)):
        floor.start()
        wait_until(lambda: Call.objects.filter(ended_at=None, sid__isnull=False, to_phone=BOB).exists())
        wait_until(lambda: floor.status(ann) != "processing")
    assert checks == [2, 2, 1, 1], "for the batch, then by the calls themselves"
    assert sim.creates_to(ANN) == 0
    assert floor.status(bob) == "processing"


@WAYS
def test_an_opt_out_hangs_up_a_call_that_rings(
    floor: Floor, sim: Simulator, opt_out: Callable[[Floor], None]
) -> None:
    (lead,) = floor.add(ANN, to=floor.add_campaign(ring_timeout_s=RINGS_S))
    floor.start()
    call = sim.phone(ANN).rings()
    wait_until(lambda: Call.objects.get().sid)
    opt_out(floor)
    call.ended("canceled")
    wait_until(lambda: floor.status(lead) != "processing")
    assert Call.objects.get().status == "canceled"


def test_a_stop_by_text_hangs_up_a_call_that_rings(floor: Floor, sim: Simulator) -> None:
    number = floor.number
    number.sends_texts = True
    number.save()
    sim.add_number(str(number.phone), sms_url=webhook_urls.number_webhook(number, "sms"))
    (lead,) = floor.add(ANN, to=floor.add_campaign(ring_timeout_s=RINGS_S))
    floor.start()
    call = sim.phone(ANN).rings()
    wait_until(lambda: Call.objects.get().sid)
    sim.phone(ANN).texts_us(str(number.phone), "STOP")
    call.ended("canceled")
    wait_until(lambda: floor.status(lead) != "processing")
    assert OptOut.objects.get().phone == ANN


def test_a_stop_by_text_leaves_calls_of_other_purposes_alone(floor: Floor) -> None:
    floor.add(ANN)
    floor.promote()
    floor.claim()
    Call.objects.update(purpose="offer")
    by_text(floor)
    assert Call.objects.get().cancel_requested_at is None


def test_cancelled_calls_are_looked_up_together(floor: Floor) -> None:
    phones = [factories.phone() for _ in range(3)]
    floor.add(*phones)
    floor.promote()
    claimed = floor.claim()
    do_not_call.add_to_list(floor.organization.pk, phones[0], source="api", actor=SYSTEM)
    calls = [to_ask.call_id for to_ask in claimed.calls]
    found = telephony.cancelled(calls)
    assert found == [to_ask.call.to_phone == phones[0] for to_ask in claimed.calls]
    assert clock.now() < claimed.calls[0].send_by


# --- Texts of phones on the do-not-call list


def by_key(floor: Floor) -> None:
    do_not_call.add_to_list(floor.organization.pk, ANN, source="key", actor=SYSTEM)


def test_a_listed_phone_that_presses_the_key_gets_no_texts_either(floor: Floor) -> None:
    by_list(floor)
    assert not OptOut.objects.exists()
    by_key(floor)
    assert OptOut.objects.get().phone == ANN


@pytest.mark.parametrize("replies_stop", [False, True])
def test_a_removed_entry_allows_texts_unless_the_person_replied_stop(floor: Floor, replies_stop: bool) -> None:
    by_key(floor)
    if replies_stop:
        by_text(floor)
    do_not_call.remove_from_list(DoNotCall.objects.get(), actor=SYSTEM)
    assert OptOut.objects.exists() is replies_stop


def test_a_removed_entry_that_was_there_before_the_key_allows_texts(floor: Floor) -> None:
    by_list(floor)
    by_key(floor)
    do_not_call.remove_from_list(DoNotCall.objects.get(), actor=SYSTEM)
    assert not OptOut.objects.exists()


@pytest.mark.parametrize("is_listed_first", [False, True])
def test_a_removed_entry_keeps_an_opt_out_that_was_entered_separately(floor: Floor, is_listed_first: bool) -> None:
    if is_listed_first:
        by_list(floor)
    sms.opt_out(floor.organization.pk, ANN)
    clock.travel(60)
    by_key(floor)
    do_not_call.remove_from_list(DoNotCall.objects.get(), actor=SYSTEM)
    assert OptOut.objects.exists()


def test_a_changed_source_of_an_opt_out_is_in_the_event_log(floor: Floor) -> None:
    by_list(floor)
    for _ in range(2):
        by_key(floor)
        by_text(floor)
    changes = Event.objects.filter(kind__endswith=".changed").order_by("id")
    assert list(changes.values_list("kind", "data__source")) == [
        ("do_not_call.changed", "key"), ("optout.changed", "stop")
    ]  # fmt: skip
