"""Pools, numbers, accounts and the call log in the admin."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.urls import reverse

from dispatch.capacity import services as capacity
from dispatch.capacity.models import DispatchPool, OutboundNumber, ProviderAccount
from dispatch.core.events import SYSTEM
from dispatch.core.models import Event
from dispatch.telephony import services
from dispatch.telephony.checks import account_tokens
from dispatch.telephony.models import Call, CallEvent
from tests.capacity.conftest import Lines
from tests.support import factories
from tests.support.factories import browser

SECRET = "a-token-that-nobody-may-read"


@pytest.fixture
def office(transactional_db: None) -> Lines:
    lines = Lines()
    ProviderAccount.objects.filter(pk=lines.account.pk).update(auth_token=SECRET)
    lines.account.refresh_from_db()
    lines.number(4)
    return lines


@pytest.fixture
def boss(office: Lines) -> Client:
    return browser(factories.admin(office.organization, "Boss"))


def page(client: Client, model: str, *args: Any, app: str = "capacity", **query: Any) -> str:
    name = f"admin:{app}_{model}_{'change' if args else 'changelist'}"
    answer = client.get(reverse(name, args=args), query)
    assert answer.status_code == 200
    return answer.content.decode()


def test_use_is_shown_beside_the_limits(office: Lines, boss: Client) -> None:
    office.call()
    ended = office.call()
    office.call()
    office.end(ended)

    assert "2 of 4" in page(boss, "outboundnumber")
    assert "2 of 100" in page(boss, "dispatchpool")


def test_lists_ask_the_database_as_often_for_many_rows(
    office: Lines, boss: Client, django_assert_max_num_queries: Any
) -> None:
    for _ in range(12):
        office.number(2)
    with django_assert_max_num_queries(16):
        page(boss, "outboundnumber")


@pytest.mark.parametrize(("model", "rows"), [("dispatchpool", DispatchPool), ("outboundnumber", OutboundNumber)])
def test_pausing_counts_at_once_and_is_in_the_log(office: Lines, model: str, rows: Any) -> None:
    dispatcher = browser(factories.dispatcher(office.organization, "Dee"))
    row = rows.objects.get()
    address = reverse(f"admin:capacity_{model}_changelist")

    for name, paused in (("pause", True), ("pause", True), ("resume", False)):
        answer = dispatcher.post(
            address, {"action": name, "confirmed": "1", "_selected_action": [row.pk]}, follow=True
        )
        assert answer.status_code == 200
        assert rows.objects.get().is_paused is paused
        assert isinstance(office.slot(), str) is paused

    kinds = Event.objects.filter(kind__regex=r"\.(paused|resumed)$").order_by("id")
    assert [event.kind.split(".")[1] for event in kinds] == ["paused", "resumed"]
    assert {event.actor_label for event in kinds} == {"Dee"}


def test_token_is_write_only(office: Lines, boss: Client) -> None:
    pages = page(boss, "provideraccount") + page(boss, "provideraccount", office.account.pk)
    assert SECRET not in pages

    form = {
        "organization": office.organization.pk,
        "name": "Main",
        "provider": "twilio",
        "account_sid": "AC" + "9" * 32,
        "calls_per_second": 2,
        "is_active": "on",
    }
    address = reverse("admin:capacity_provideraccount_change", args=[office.account.pk])
    assert boss.post(address, {**form, "token": ""}).status_code == 302
    account = ProviderAccount.objects.get(pk=office.account.pk)
    assert (account.name, account.auth_token, account.previous_auth_token) == ("Main", SECRET, "")

    assert boss.post(address, {**form, "token": "fresh"}).status_code == 302
    account.refresh_from_db()
    assert (account.auth_token, account.previous_auth_token) == ("fresh", SECRET)
    assert boss.post(address, {**form, "token": "fresh"}).status_code == 302, "entered again, to be sure"
    account.refresh_from_db()
    assert (account.auth_token, account.previous_auth_token) == ("fresh", SECRET)
    assert Event.objects.filter(kind="account.token_changed").count() == 1
    assert not any("fresh" in str(event.data) for event in Event.objects.all())
    with connection.cursor() as cursor:
        cursor.execute("SELECT auth_token, previous_auth_token FROM capacity_provideraccount")
        stored = str(cursor.fetchall())
    assert "fresh" not in stored
    assert SECRET not in stored


def test_a_new_account(office: Lines, boss: Client) -> None:
    form = {
        "organization": office.organization.pk,
        "name": "Second",
        "provider": "twilio",
        "account_sid": "AC" + "8" * 32,
        "calls_per_second": 1,
        "is_active": "on",
    }
    address = reverse("admin:capacity_provideraccount_add")
    assert "needs a token" in boss.post(address, form).content.decode()
    mixed_up = boss.post(address, {**form, "token": "new", "account_sid": "SK" + "8" * 32})
    assert "SID of an API key" in mixed_up.content.decode()
    other = boss.post(address, {**form, "token": "new", "provider": "carrier-pigeon"})
    assert "carrier-pigeon is not one of the available choices" in other.content.decode()
    assert '<option value="twilio" selected>Twilio</option>' in boss.get(address).content.decode()

    assert boss.post(address, {**form, "token": "new"}).status_code == 302

    assert ProviderAccount.objects.get(name="Second").auth_token == "new"


def test_an_api_key_is_entered_and_its_secret_never_comes_out(office: Lines, boss: Client) -> None:
    form = {
        "organization": office.organization.pk,
        "name": "Main",
        "provider": "twilio",
        "account_sid": "AC" + "9" * 32,
        "api_key_sid": "SK" + "a" * 32,
        "calls_per_second": 2,
        "is_active": "on",
    }
    address = reverse("admin:capacity_provideraccount_change", args=[office.account.pk])
    assert "Enter the secret" in boss.post(address, form).content.decode()
    wrong = boss.post(address, {**form, "api_key_sid": "AC" + "a" * 32, "secret": SECRET})
    assert "Not the SID of a Twilio API key" in wrong.content.decode()
    assert "Enter the edge" in boss.post(address, {**form, "secret": SECRET, "region": "ie1"}).content.decode()
    more = {"secret": "hush-hush", "region": "ie1", "edge": "dublin"}
    assert boss.post(address, {**form, **more}).status_code == 302
    account = ProviderAccount.objects.get(pk=office.account.pk)
    assert (account.api_key_sid, account.api_key_secret) == ("SK" + "a" * 32, "hush-hush")
    assert (account.region, account.edge, account.auth_token) == ("ie1", "dublin", SECRET)
    assert "hush-hush" not in page(boss, "provideraccount", office.account.pk)
    assert not any("hush-hush" in str(event.data) for event in Event.objects.all())
    assert boss.post(address, {**form, **more, "secret": ""}).status_code == 302
    account.refresh_from_db()
    assert account.api_key_secret == "hush-hush", "an empty field keeps it"


def test_an_active_account_without_a_token_is_reported(office: Lines) -> None:
    assert account_tokens(None, databases=["default"]) == []
    ProviderAccount.objects.filter(pk=office.account.pk).update(auth_token="")

    found = account_tokens(None, databases=["default"])

    assert [one.id for one in found] == ["dispatch.E101"]
    ProviderAccount.objects.filter(pk=office.account.pk).update(is_active=False)
    assert account_tokens(None, databases=["default"]) == []


def test_an_active_account_of_an_unknown_provider_is_reported(office: Lines) -> None:
    ProviderAccount.objects.filter(pk=office.account.pk).update(provider="carrier-pigeon")
    (found,) = account_tokens(None, databases=["default"])
    assert (found.id, "carrier-pigeon" in found.msg, "(twilio)" in found.hint) == ("dispatch.E102", True, True)


def test_a_caller_number_belongs_to_one_organization(office: Lines, boss: Client) -> None:
    """Else an unknown call of one could be taken for the other's."""
    taken = factories.number(factories.organization("Elsewhere"))
    form = {
        "organization": office.organization.pk,
        "phone": str(taken.phone),
        "account": office.account.pk,
        "pool": OutboundNumber.objects.of(office.organization).get().pool_id,
        "max_channels": 1,
        "reserved_for_alerts": 0,
        "reserved_for_offers": 0,
        "texts_per_second": 1.0,
    }
    address = reverse("admin:capacity_outboundnumber_add")
    assert "Pause it there first" in boss.post(address, form).content.decode()

    taken.is_paused = True
    taken.save()
    assert boss.post(address, form).status_code == 302
    ours = OutboundNumber.objects.of(office.organization).get(phone=taken.phone)
    assert not ours.is_paused
    twice = boss.post(address, form).content.decode()
    assert "already exists" in twice
    assert "Pause it there first" not in twice, "it is in use here"
    with pytest.raises(capacity.NumberTaken):
        capacity.set_paused(taken, False, actor=SYSTEM)
    theirs = browser(factories.admin(taken.organization))
    data = {"action": "resume", "confirmed": "1", "_selected_action": [taken.pk]}
    said = theirs.post(reverse("admin:capacity_outboundnumber_changelist"), data, follow=True).content.decode()
    assert "already in use" in said
    assert OutboundNumber.objects.get(pk=taken.pk).is_paused


def test_limits_are_changed_by_form(office: Lines, boss: Client) -> None:
    number = OutboundNumber.objects.get()
    form = {
        "organization": office.organization.pk,
        "phone": str(number.phone),
        "name": "Desk",
        "account": number.account_id,
        "pool": number.pool_id,
        "max_channels": 2,
        "reserved_for_alerts": 1,
        "reserved_for_offers": 0,
        "texts_per_second": 1.0,
    }
    address = reverse("admin:capacity_outboundnumber_change", args=[number.pk])
    assert boss.post(address, {**form, "reserved_for_alerts": 3}).status_code == 200, "more than there are"
    assert OutboundNumber.objects.get().max_channels == 4

    assert boss.post(address, form).status_code == 302

    assert [office.slot("lead"), office.slot("lead"), office.slot("alert")] == [1, "lines_busy", 2]
    assert Event.objects.filter(kind="number.changed", actor_label="Boss").exists()


def test_kind_of_a_pool_stays(office: Lines, boss: Client) -> None:
    pool = office.pool
    sent = {"organization": pool.organization_id, "name": "Renamed", "code": pool.code, "kind": "messages"}
    answer = boss.post(reverse("admin:capacity_dispatchpool_change", args=[pool.pk]), {**sent, "concurrency": 9})
    assert answer.status_code == 302
    pool.refresh_from_db()
    assert (pool.name, pool.kind) == ("Renamed", "calls")


def test_second_default_pool_is_refused_with_the_name_of_the_first(office: Lines, boss: Client) -> None:
    first = office.pool
    other = factories.pool(office.organization, name="Other", code="other")
    sent = {"organization": other.organization_id, "name": "Other", "code": "other", "concurrency": 9}
    for address in (
        reverse("admin:capacity_dispatchpool_change", args=[other.pk]),
        reverse("admin:capacity_dispatchpool_add"),
    ):
        answer = boss.post(address, {**sent, "code": "new", "kind": first.kind, "is_default": "on"})
        assert answer.context["errors"] == [
            [f"{first} ({first.code}) is already the default. Change that pool first."]
        ]
    other.refresh_from_db()
    assert not other.is_default


def test_the_call_log_shows_and_does_not_edit(office: Lines, boss: Client) -> None:
    call = office.call()
    CallEvent.objects.create(
        organization=office.organization,
        call=call,
        key="#1",
        kind="status",
        payload={"CallStatus": "ringing", "StirVerstat": "TN-A"},
    )
    text = page(boss, "call", call.pk, app="telephony")
    assert "ringing" in text
    assert "StirVerstat" in text
    address = reverse("admin:telephony_call_change", args=[call.pk])
    assert boss.post(address, {"status": "completed"}).status_code == 403
    assert boss.get(reverse("admin:telephony_call_add")).status_code == 403
    assert boss.post(reverse("admin:telephony_call_delete", args=[call.pk]), {"post": "yes"}).status_code == 403
    assert Call.objects.get().status == "created"
    assert f">{call.pk}<" in page(
        boss, "call", app="telephony", status__exact="created", number__id__exact=call.number_id
    )
    assert f">{call.pk}<" not in page(boss, "call", app="telephony", status__exact="busy")


def test_dispatcher_hangs_up_manually(office: Lines) -> None:
    call, over = office.call(), office.call()
    services.hang_up(over.pk)
    dispatcher = browser(factories.dispatcher(office.organization, "Dee"))

    answer = dispatcher.post(
        reverse("admin:telephony_call_changelist"),
        {"action": "hang_up", "confirmed": "1", "_selected_action": [call.pk, over.pk]},
        follow=True,
    )

    assert "1 had already ended" in answer.content.decode()
    assert Call.objects.get(pk=call.pk).status == "canceled"
    assert Event.objects.get(kind="call.cancel_requested", subject_id=call.pk).actor_label == "Dee"


def test_other_organizations_rows_are_inaccessible(office: Lines, boss: Client) -> None:
    theirs = Lines()
    theirs.number(7)
    call = theirs.call()
    foreign = {
        ("capacity", "outboundnumber"): OutboundNumber.objects.get(organization=theirs.organization),
        ("capacity", "dispatchpool"): theirs.pool,
        ("capacity", "provideraccount"): theirs.account,
        ("telephony", "call"): call,
    }
    for (app, model), row in foreign.items():
        assert f"/{model}/{row.pk}/change/" not in page(boss, model, app=app)
        answer = boss.get(reverse(f"admin:{app}_{model}_change", args=[row.pk]))
        assert answer.status_code in (302, 404)
    for app, model, action in (("capacity", "dispatchpool", "pause"), ("telephony", "call", "hang_up")):
        row = foreign[app, model]
        address = reverse(f"admin:{app}_{model}_changelist")
        boss.post(address, {"action": action, "confirmed": "1", "_selected_action": [row.pk]}, follow=True)
    assert Call.objects.get(pk=call.pk).ended_at is None
    assert not DispatchPool.objects.get(pk=theirs.pool.pk).is_paused

    number = OutboundNumber.objects.get(organization=office.organization)
    form = {
        "organization": office.organization.pk,
        "phone": str(number.phone),
        "account": theirs.account.pk,
        "pool": theirs.pool.pk,
        "max_channels": 9,
        "reserved_for_alerts": 0,
        "reserved_for_offers": 0,
        "texts_per_second": 1.0,
    }
    boss.post(reverse("admin:capacity_outboundnumber_change", args=[number.pk]), form)
    number.refresh_from_db()
    assert (number.account_id, number.max_channels) == (office.account.pk, 4)
