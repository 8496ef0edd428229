"""While a pool's account is down or refused, offers go through the fallback, and nobody is called twice."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.db import transaction

from dispatch.capacity import line_leases
from dispatch.capacity.models import DispatchPool, OutboundNumber, ProviderAccount
from dispatch.core import clock
from dispatch.core.models import Event
from dispatch.jobs import services
from dispatch.jobs.models import TechnicianNotice
from dispatch.technicians.models import Technician
from dispatch.telephony.models import Call, Text
from dispatch.telephony.services import create_text, send_text, sms
from dispatch.telephony.services.probes import probe_accounts
from notifications.rules import BY_KIND, message_of
from tests.api.client import Api
from tests.harness.jobs import MARIA
from tests.phones import answer
from tests.support import factories

SECOND_SID, SECOND_TOKEN = "AC" + "b2".rjust(32, "0"), "token-of-the-second-account"


@pytest.fixture
def second(floor: Any) -> ProviderAccount:
    """A second account, with a number in the fallback of the floor's pool."""
    floor.sim.add_account(SECOND_SID, SECOND_TOKEN)
    account = factories.account(
        floor.organization, account_sid=SECOND_SID, auth_token=SECOND_TOKEN, calls_per_second=1000.0, name="Second"
    )
    backup = factories.pool(floor.organization, code="backup", name="Backup")
    factories.number(floor.organization, account=account, pool=backup, max_channels=10)
    DispatchPool.objects.filter(pk=floor.number.pool_id).update(fallback=backup)
    return account


def pass_time(floor: Any, seconds: float) -> None:
    until = clock.now().timestamp() + seconds
    while clock.now().timestamp() < until:
        floor.later(1)
        probe_accounts()
        floor.work()
        floor.audit()


def accounts_of_calls() -> list[int]:
    return list(Call.objects.order_by("id").values_list("account_id", flat=True))


def test_offer_goes_through_the_second_account_at_once_if_the_first_is_refused(floor, second):
    (ann,) = floor.crew("Ann")
    floor.phone(ann).will(answer(press="1"))
    floor.sim.set_account(status="suspended")
    job = floor.started()
    pass_time(floor, 2)
    floor.until(lambda: floor.status(job) == "assigned")
    assert floor.offers(job) == [("Ann", "provider_refused"), ("Ann", "accepted")]
    assert accounts_of_calls() == [floor.number.account_id, second.pk]
    assert Call.objects.get(account=second).pool.code == "backup"
    assert floor.calls_made(ann) == 1
    began = Event.objects.get(kind="account.outage_began")
    message = message_of(
        BY_KIND[began.kind], {**began.data, **BY_KIND[began.kind].says(began.data), "id": began.subject_id}
    )
    assert message.title.startswith("A provider account is failing: The phone provider refused our account")
    assert "are placed, and texts are sent, from Backup until" in message.body


def test_calls_return_when_the_first_account_is_back(floor, second):
    ann, bob = floor.crew("Ann", "Bob")
    floor.phone(ann).will(answer(press="1"))
    floor.phone(bob).will(answer(press="1"))
    floor.sim.set_account(status="suspended")
    first = floor.started()
    pass_time(floor, 2)
    floor.until(lambda: floor.status(first) == "assigned")
    pass_time(floor, 7)
    floor.sim.set_account(status="active")
    pass_time(floor, 12)
    assert not ProviderAccount.objects.exclude(outage="").exists()
    before = Call.objects.count()
    job = floor.started()
    floor.until(lambda: floor.status(job) == "assigned")
    assert accounts_of_calls()[before:] == [floor.number.account_id]


def test_unknown_call_stays_with_its_account_and_nobody_is_called_twice(floor, second, settings):
    settings.PROVIDER_TIMEOUT_S = 0.5
    ann, bob, cid = floor.crew("Ann", "Bob", "Cid")
    floor.sim.fault("error_503", times=None, on="any", account=floor.sim.account_sid, creates=True)
    floor.sim.lose_callbacks(to=str(ann.phone))
    floor.sim.lose_webhooks("twiml", times=None, to=str(ann.phone))
    for technician in (bob, cid):
        floor.phone(technician).will(answer(press="1"))
    job = floor.started()
    unknown = Call.objects.get()
    assert unknown.status == "unknown"
    ProviderAccount.objects.filter(pk=unknown.account_id).update(
        outage="no_answer", outage_since=clock.now(), probe_at=clock.now()
    )
    pass_time(floor, 50)
    assert floor.calls_made(ann) == 1, "her phone may still ring"
    assert Call.objects.get(pk=unknown.pk).account_id == floor.number.account_id
    assert not Call.objects.filter(to_phone=ann.phone).exclude(pk=unknown.pk).exists()
    floor.until(lambda: floor.job(job).technician is not None)
    assert floor.job(job).technician in (bob, cid)
    assert {call.account_id for call in Call.objects.exclude(pk=unknown.pk)} == {second.pk}
    floor.sim.heal()
    pass_time(floor, 20)  # an account whose listing failed is left alone for a while
    assert Call.objects.get(pk=unknown.pk).sid, "found in the first account's list"
    assert Call.objects.get(pk=unknown.pk).account_id == floor.number.account_id


def test_lone_technician_is_called_at_once_although_the_first_call_was_withdrawn(floor, second):
    (ann,) = floor.crew("Ann")
    floor.phone(ann).will(answer(press="1"))
    floor.sim.fault("reset_before", times=None, on="any", account=floor.sim.account_sid)
    job = floor.started()
    unknown = Call.objects.get()
    pass_time(floor, 60)
    assert ProviderAccount.objects.get(pk=floor.number.account_id).outage == "no_answer"
    Call.objects.filter(pk=unknown.pk, ended_at=None).update(status="not_placed", ended_at=clock.now())
    pass_time(floor, 10)
    floor.until(lambda: floor.status(job) == "assigned")
    assert Call.objects.get(sid__isnull=False).account_id == second.pk


def test_job_waits_as_before_if_the_fallback_is_down_too(floor, second):
    floor.crew("Ann")
    floor.sim.fault("refuse", code=20003, times=None, on="any")
    job = floor.started()
    pass_time(floor, 5)
    assert (floor.status(job), floor.job(job).waiting_for) == ("dispatching", "account")
    assert {account.outage for account in ProviderAccount.objects.all()} == {"refused"}


def test_fallback_of_another_organization_is_never_used(floor):
    (ann,) = floor.crew("Ann")
    theirs = factories.organization()
    floor.sim.add_account(SECOND_SID, SECOND_TOKEN)
    account = factories.account(theirs, account_sid=SECOND_SID, auth_token=SECOND_TOKEN)
    pool = factories.pool(theirs)
    factories.number(theirs, account=account, pool=pool)
    DispatchPool.objects.filter(pk=floor.number.pool_id).update(fallback=pool)  # past all validation
    floor.sim.set_account(status="suspended")
    job = floor.started()
    pass_time(floor, 5)
    assert floor.job(job).waiting_for == "account"
    assert set(accounts_of_calls()) == {floor.number.account_id}
    assert floor.calls_made(ann) == 0


def test_form_refuses_impossible_fallbacks(floor):
    mine = DispatchPool.objects.get(pk=floor.number.pool_id)
    theirs = factories.pool(factories.organization())
    messages = factories.pool(floor.organization, kind="messages")
    for fallback in (mine, theirs, messages):
        mine.fallback = fallback
        with pytest.raises(ValidationError) as refused:
            mine.clean()
        assert set(refused.value.message_dict) == {"fallback"}
    mine.fallback = factories.pool(floor.organization)
    mine.clean()


def test_news_call_goes_through_the_second_account(floor, second):
    (ann,) = floor.crew("Ann")
    floor.phone(ann).will(answer(press="1"), answer(press="1"))
    job = floor.started()
    floor.until(lambda: floor.status(job) == "assigned")
    floor.until(lambda: not Call.objects.filter(ended_at=None).exists())
    floor.sim.set_account(status="suspended")
    services.cancel(job.pk, "the customer fixed it", actor=MARIA)

    def is_called() -> bool:
        clock.travel(1)
        services.advance_due_notices()
        floor.tick()
        return Call.objects.filter(purpose="job_news", account=second).exists()

    floor.until(is_called)
    floor.until(lambda: floor.tick() or TechnicianNotice.objects.filter(status="reached").exists())
    last = Call.objects.filter(purpose="job_news").latest("pk")
    assert (last.account_id, last.pool.code) == (second.pk, "backup")
    assert "job.technician_unreached" not in floor.kinds(job)


# --- texts ------------------------------------------------------------------------------------------------------


def allow_texts(floor: Any, *, fallback: bool = True) -> OutboundNumber:
    """Let the floor's number text, and the fallback's; return the latter."""
    numbers = OutboundNumber.objects.filter(organization=floor.organization)
    if not fallback:
        numbers = numbers.filter(pk=floor.number.pk)
    numbers.update(sends_texts=True, texts_per_second=1000)
    return OutboundNumber.objects.get(pool__code="backup")


def begin_outage(floor: Any) -> None:
    ProviderAccount.objects.filter(pk=floor.number.account_id).update(outage="refused", outage_since=clock.now())


def new_text(floor: Any, ann: Technician, purpose: str = "job_news") -> Text:
    """A text whose number is the first one that may text."""
    with transaction.atomic():
        return create_text(
            organization=floor.organization, to_phone=ann.phone, body="Your job has changed.", purpose=purpose,
            subject_id=1, pool=floor.number.pool,
        )  # fmt: skip


def sent(text: Text) -> Text:
    send_text(text.pk)
    text.refresh_from_db()
    return text


def test_new_text_comes_from_the_fallback_during_an_outage(floor, second):
    (ann,) = floor.crew("Ann")
    backup = allow_texts(floor)
    assert new_text(floor, ann, "job").number_id == floor.number.pk
    begin_outage(floor)
    text = sent(new_text(floor, ann))
    assert (text.number_id, text.account_id, text.from_phone) == (backup.pk, second.pk, str(backup.phone))
    assert text.sid


def test_waiting_text_moves_to_the_fallback_when_the_outage_begins(floor, second):
    (ann,) = floor.crew("Ann")
    backup = allow_texts(floor)
    text = new_text(floor, ann)
    begin_outage(floor)
    assert (sent(text).number_id, bool(text.sid)) == (backup.pk, True)
    event = Event.objects.get(kind="text.rerouted")
    assert (event.data["number"], "refused our account" in event.data["why"]) == (str(backup.phone), True)


def test_text_that_meets_the_refusal_is_requeued_for_the_fallback(floor, second):
    (ann,) = floor.crew("Ann")
    backup = allow_texts(floor)
    floor.sim.set_account(status="suspended")
    text = sent(new_text(floor, ann))
    assert (text.status, text.number_id) == ("created", backup.pk)
    assert ProviderAccount.objects.get(pk=floor.number.account_id).outage == "refused"
    assert sent(text).sid


def test_text_waits_or_fails_as_before_without_a_fallback_that_may_text(floor, second):
    (ann,) = floor.crew("Ann")
    allow_texts(floor, fallback=False)
    waiting = new_text(floor, ann)
    begin_outage(floor)
    assert (sent(waiting).status, waiting.number_id) == ("created", floor.number.pk)
    assert waiting.not_before > clock.now()


def test_reply_to_a_keyword_keeps_its_number(floor, second):
    (ann,) = floor.crew("Ann")
    allow_texts(floor)
    text = new_text(floor, ann, "reply")
    begin_outage(floor)
    assert (sent(text).status, text.number_id) == ("created", floor.number.pk)


@pytest.mark.parametrize(("said", "is_used"), [(["STOP"], False), (["STOP", "START"], True), (["OK"], True)])
def test_phone_that_said_stop_to_the_fallback_is_not_texted_from_it(floor, second, said, is_used):
    (ann,) = floor.crew("Ann")
    backup = allow_texts(floor)
    for body in said:
        Text.objects.create(
            organization=floor.organization, direction="in", account=second, number=backup, to_phone=backup.phone,
            from_phone=str(ann.phone), body=body, status="received", not_after=clock.now(),
        )  # fmt: skip
    begin_outage(floor)
    number = OutboundNumber.objects.get(pk=floor.number.pk)
    substitute = sms.find_substitute(number, str(ann.phone))
    assert (substitute == backup) == is_used


# --- the API ----------------------------------------------------------------------------------------------------


def test_api_reads_and_writes_the_fallback(floor):
    api = Api(user=factories.admin(floor.organization))
    mine, backup = floor.number.pool, factories.pool(floor.organization, code="backup")
    answer = api.patch(f"pools/{mine.pk}/", {"fallback": "backup"})
    assert (answer.status_code, answer.json()["fallback"]) == (200, "backup")
    assert DispatchPool.objects.get(pk=mine.pk).fallback == backup
    event = Event.objects.get(kind="pool.changed")
    assert (event.actor_type, event.data["fields"]) == ("user", ["fallback"])
    assert api.get("pools/").json()["results"][0]["fallback"] is None
    assert api.patch(f"pools/{mine.pk}/", {"fallback": None}).json()["fallback"] is None
    made = api.post("pools/", {"code": "third", "name": "Third", "fallback": "backup"})
    assert (made.status_code, made.json()["fallback"]) == (201, "backup")


def test_api_refuses_impossible_fallbacks(floor):
    api = Api(user=factories.admin(floor.organization))
    mine = floor.number.pool
    factories.pool(factories.organization(), code="theirs")
    messages = factories.pool(floor.organization, code="messages", kind="messages")
    factories.pool(floor.organization, code="backup")
    for pool, fallback in [(mine, mine.code), (mine, "theirs"), (mine, "messages"), (messages, "backup")]:
        refused = api.patch(f"pools/{pool.pk}/", {"fallback": fallback})
        assert refused.status_code == 400, refused.content
        assert [error["field"] for error in refused.json()["errors"]] == ["fallback"]
    assert not DispatchPool.objects.exclude(fallback=None).exists()


def test_pool_with_a_working_number_of_its_own_does_not_switch(floor, second):
    (ann,) = floor.crew("Ann")
    third = factories.account(
        floor.organization, account_sid=SECOND_SID, auth_token=SECOND_TOKEN, calls_per_second=1000.0, name="Third"
    )
    own = factories.number(floor.organization, account=third, pool=floor.number.pool, max_channels=5)
    ProviderAccount.objects.filter(pk=floor.number.account_id).update(outage="refused", outage_since=clock.now())
    floor.phone(ann).will(answer(press="1"))
    job = floor.started()
    floor.until(lambda: floor.status(job) == "assigned")
    assert Call.objects.get().number_id == own.pk
    assert OutboundNumber.objects.filter(pool__code="backup").count() == 1
    assert Technician.objects.get().misses_in_a_row == 0


def test_calls_about_jobs_use_the_fallback_and_leads_do_not(floor, second):
    ProviderAccount.objects.filter(pk=floor.number.account_id).update(outage="refused", outage_since=clock.now())
    pool = DispatchPool.objects.get(pk=floor.number.pool_id)
    lines = {}
    for purpose in ("alert", "offer", "lead", "job_news"):
        with transaction.atomic():
            lines[purpose] = line_leases.propose_line(pool, purpose, f"{purpose}:1:1")
    assert {lines[purpose].account_id for purpose in ("alert", "offer", "job_news")} == {second.pk}
    assert lines["lead"].reason == "refused"
    with transaction.atomic():
        only = line_leases.propose_line(pool, "alert", "alert:2:1", only=floor.number.pk)
    assert only.reason == "refused", "a named number has no substitute"
