"""Records of consent: imported with leads, needed by campaigns, withdrawn by opt-outs, exported and erased."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import connection, connections, transaction
from django.urls import reverse

from dispatch.core import clock
from dispatch.core.events import SYSTEM
from dispatch.core.models import Event
from dispatch.core.privacy import personal_data
from dispatch.core.privacy.personal_data import DataSubject
from dispatch.leads.explain import explain_lead
from dispatch.leads.models import Campaign, Consent, DoNotCall, Lead
from dispatch.leads.services import consents, do_not_call
from dispatch.leads.services.consents import NewConsent
from dispatch.telephony.models import Call, Text
from dispatch.telephony.services import inbound
from tests.api.client import Api
from tests.harness.leads import Floor
from tests.support import factories as make
from tests.support.factories import browser
from tests.support.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)

ANN, BOB = "+16025550101", "+16025550102"


@pytest.fixture
def api(floor: Floor) -> Api:
    return Api(key=make.api_key(floor.organization, "leads:write", "read", "manage"))


def consent(floor: Floor, phone: str = ANN, days_ago: float = 1, **fields: Any) -> int:
    """Record a consent; how many are new."""
    new = NewConsent(clock.now() - timedelta(days=days_ago), "web form", **fields)
    with transaction.atomic():
        return consents.record_consents(floor.organization.pk, [(phone, new)])


def need(purpose: str) -> None:
    Campaign.objects.update(consent_purpose=purpose)


# --- Campaigns that need consent


def test_a_campaign_calls_only_who_agreed(floor: Floor) -> None:
    need("marketing")
    consent(floor, ANN)
    consent(floor, BOB, purpose="service")
    ann, bob = floor.add(ANN, BOB)
    assert floor.work() == 1
    assert floor.lead(ann).outcome == "answered"
    row = floor.lead(bob)
    assert (row.outcome, row.reason) == ("no_consent", "no_consent")
    assert explain_lead(row) == "Not called: no valid consent for the campaign's purpose is recorded."
    assert floor.told(bob)[-1] == "finished"


def test_a_consent_of_another_organization_does_not_count(floor: Floor) -> None:
    need("marketing")
    Consent.objects.create(organization=make.organization(), phone=ANN, given_at=clock.now(), source="x")
    (lead,) = floor.add(ANN)
    assert floor.work() == 0
    assert floor.lead(lead).outcome == "no_consent"


def test_without_a_need_everybody_is_called(floor: Floor) -> None:
    floor.add(ANN)
    assert floor.work() == 1


@pytest.mark.parametrize("how", ["list", "text", "api", "erased"])
def test_a_withdrawn_consent_does_not_count(floor: Floor, api: Api, how: str) -> None:
    need("marketing")
    consent(floor)
    (lead,) = floor.add(ANN)
    if how == "list":
        do_not_call.add_to_list(floor.organization.pk, ANN, source="person", actor=SYSTEM)
        DoNotCall.objects.all().delete()
    elif how == "text":
        text = Text.objects.create(
            organization=floor.organization, direction="in", account=floor.account, number=floor.number,
            from_phone=ANN, to_phone=floor.number.phone, body="STOP", status="received", sid="SM1",
            not_after=clock.now(),
        )  # fmt: skip
        inbound.process_text(text.pk)
        from dispatch.telephony.services import opt_in

        opt_in(floor.organization.pk, ANN)
    elif how == "api":
        row = Consent.objects.get()
        assert api.post(f"consents/{row.pk}/withdraw/", {}).json()["withdrawn_by"] == "api"
        assert api.post(f"consents/{row.pk}/withdraw/", {}).status_code == 200
    else:
        consents.erase(floor.organization.pk, ANN)
    assert Consent.objects.get().withdrawn_at is not None
    assert floor.work() == 0
    assert floor.lead(lead).outcome == "no_consent"


def test_a_withdrawal_hangs_up_a_call_that_rings(floor: Floor) -> None:
    need("marketing")
    consent(floor)
    floor.use_provider("noop")
    floor.add(ANN)
    floor.promote()
    floor.dial()
    assert Call.objects.get().cancel_requested_at is None
    consents.withdraw(floor.organization.pk, ANN, by="api", actor=SYSTEM)
    assert Call.objects.get().cancel_requested_at is not None


# --- Recording


def test_a_valid_consent_is_recorded_once_and_an_older_one_does_not_revive(floor: Floor) -> None:
    assert [consent(floor), consent(floor), consent(floor, purpose="service")] == [1, 0, 1]
    assert consents.withdraw(floor.organization.pk, ANN, by="key", actor=SYSTEM) == 2
    assert consents.withdraw(floor.organization.pk, ANN, by="key", actor=SYSTEM) == 0
    assert consent(floor) == 0, "it is older than the withdrawal"
    clock.travel(60)
    assert consent(floor, days_ago=0) == 1
    assert Consent.objects.filter(withdrawn_at=None).count() == 1


def test_an_older_consent_that_waits_for_a_withdrawal_does_not_revive(floor: Floor) -> None:
    consent(floor)

    def record() -> int:
        try:
            return consent(floor, days_ago=2)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(1) as pool:
        with transaction.atomic():
            consents.withdraw(floor.organization.pk, ANN, by="key", actor=SYSTEM)
            written = pool.submit(record)
            wait_until(somebody_waits_for_us)
        assert written.result() == 0
    assert not Consent.objects.filter(withdrawn_at=None).exists()


def somebody_waits_for_us() -> bool:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT EXISTS (SELECT FROM pg_locks"
            " WHERE NOT granted AND pg_backend_pid() = ANY(pg_blocking_pids(pid)))"
        )
        return bool(cursor.fetchone()[0])


def test_an_older_consent_does_not_revive_after_an_erasure(floor: Floor) -> None:
    consent(floor)
    consents.erase(floor.organization.pk, ANN)
    assert [consent(floor), consent(floor, BOB)] == [0, 1]
    clock.travel(60)
    assert consent(floor, days_ago=0) == 1


@pytest.mark.parametrize("at", ["0001-01-01T00:00:00+14:00", "0001-01-01T00:00:00Z", "2999-01-01T00:00:00Z"])
def test_a_time_at_which_nobody_agreed_is_refused(floor: Floor, api: Api, at: str) -> None:
    code = floor.campaign.code
    assert api.post("consents/", {"phone": ANN, "given_at": at, "source": "call"}).status_code == 400
    lead = {"phone": ANN, "consent_at": at, "consent_source": "call"}
    assert api.post("leads/", {**lead, "campaign": code}).status_code == 400
    assert api.post("leads/bulk/", {"campaign": code, "leads": [lead]}).json()["rejected"] == 1
    with pytest.raises(ValidationError):
        Consent(given_at=datetime.fromisoformat(at)).clean()
    assert not Consent.objects.exists()


def test_a_phone_on_the_do_not_call_list_gives_no_consent(floor: Floor, api: Api) -> None:
    do_not_call.add_to_list(floor.organization.pk, ANN, source="person", actor=SYSTEM)
    clock.travel(60)
    given = {"phone": ANN, "given_at": clock.now().isoformat(), "source": "call"}
    assert api.post("consents/", given).status_code == 409
    assert not Consent.objects.exists()


def entry(phone: str, **fields: Any) -> dict[str, Any]:
    return {"phone": phone, "consent_at": "2026-01-02T03:04:05Z", "consent_source": "web form", **fields}


def test_consents_come_with_leads(floor: Floor, api: Api) -> None:
    words = {"consent_words": "You may call me.", "consent_proof": "https://x/1", "consent_purpose": "offers"}
    code = floor.campaign.code
    assert api.post("leads/", {**entry(ANN, **words), "campaign": code}).status_code == 201
    bad = [
        entry(make.phone(), consent_source=""), entry(make.phone(), consent_at="2999-01-01T00:00:00Z"),
        entry(make.phone(), consent_purpose="Not Valid"), {"phone": make.phone(), "consent_words": "x"},
        entry(make.phone(), consent_at="yesterday"), entry(make.phone(), consent_words=5),
    ]  # fmt: skip
    answer = api.post("leads/bulk/", {"campaign": code, "leads": [entry(BOB), *bad]}).json()
    assert (answer["accepted"], answer["rejected"]) == (1, len(bad))
    assert {row["field"] for row in answer["results"][1:]} <= {"consent_at", "consent_purpose", "consent_words"}
    assert api.post("leads/", {"phone": make.phone(), "campaign": code, "consent_words": "x"}).status_code == 400
    ann, bob = Consent.objects.order_by("pk")
    assert (ann.purpose, ann.words, ann.proof, str(ann.phone)) == (
        "offers",
        "You may call me.",
        "https://x/1",
        ANN,
    )
    assert (bob.purpose, str(bob.phone)) == ("marketing", BOB)
    lead = Lead.objects.get(phone=ANN)
    assert [row["words"] for row in api.get(f"leads/{lead.pk}/").json()["consents"]] == ["You may call me."]


def test_consents_come_with_a_file_and_show_at_the_lead(floor: Floor) -> None:
    rows = f"phone,consent_at,consent_source,consent_words\n{ANN},2026-01-02 03:04,web form,Call me.\n"
    page = browser(make.admin(floor.organization))
    sent = {"campaign": floor.campaign.code, "file": SimpleUploadedFile("leads.csv", rows.encode())}
    assert page.post(reverse("console:leads_upload"), sent).status_code == 200
    assert Consent.objects.get().words == "Call me."
    assert "Call me." in page.get(reverse("console:leads_phone"), {"q": ANN}).content.decode()
    lead = Lead.objects.get()
    assert "web form: Call me." in page.get(reverse("admin:leads_lead_change", args=[lead.pk])).content.decode()


def test_consents_are_listed_by_tenant_and_never_changed(floor: Floor, api: Api) -> None:
    consent(floor)
    Consent.objects.create(organization=make.organization(), phone=BOB, given_at=clock.now(), source="x")
    (row,) = api.get("consents/?is_withdrawn=false").json()["results"]
    assert row["phone"] == ANN
    assert api.get("consents/?is_withdrawn=true").json()["results"] == []
    assert api.patch(f"consents/{row['id']}/", {"words": "x"}).status_code == 405
    assert api.delete(f"consents/{row['id']}/").status_code == 405


def test_the_admin_records_and_withdraws_and_changes_nothing(floor: Floor) -> None:
    page = browser(make.admin(floor.organization))
    sent = {"organization": floor.organization.pk, "phone": ANN, "purpose": "marketing", "source": "paper",
            "given_at_0": "2026-01-02", "given_at_1": "03:04:05", "words": "w"}  # fmt: skip
    assert page.post(reverse("admin:leads_consent_add"), sent).status_code == 302
    row = Consent.objects.get()
    assert row.source == "paper"
    assert (
        page.post(reverse("admin:leads_consent_change", args=[row.pk]), {**sent, "words": "z"}).status_code == 403
    )
    assert page.post(reverse("admin:leads_consent_delete", args=[row.pk]), {"post": "yes"}).status_code == 403
    actions = {"action": "withdraw", "_selected_action": [row.pk], "confirmed": "1"}
    page.post(reverse("admin:leads_consent_changelist"), actions)
    row.refresh_from_db()
    assert (row.withdrawn_by, row.words) == ("person", "w")


def test_the_admin_says_that_a_second_consent_was_not_recorded(floor: Floor) -> None:
    page = browser(make.admin(floor.organization))
    sent = {"organization": floor.organization.pk, "phone": ANN, "purpose": "marketing", "source": "paper",
            "given_at_0": "2026-01-02", "given_at_1": "03:04:05", "words": "first"}  # fmt: skip
    page.post(reverse("admin:leads_consent_add"), sent, follow=True)
    again = page.post(reverse("admin:leads_consent_add"), {**sent, "words": "second"}, follow=True)
    told = again.content.decode()
    assert "already has a valid consent for this purpose" in told
    assert "added successfully" not in told
    assert Consent.objects.get().words == "first"


# --- Personal data


def test_a_consent_is_exported_and_keeps_no_phone_when_it_is_erased(floor: Floor) -> None:
    consent(floor, words="You may call me.", proof=f"https://x/?phone={ANN}")
    person = DataSubject(floor.organization.pk, phone=ANN)
    assert personal_data.export_person(person, actor=SYSTEM)["consents"][0]["words"] == "You may call me."
    personal_data.erase_person(person, actor=SYSTEM)
    row = Consent.objects.get()
    assert (row.phone, row.proof, row.words, row.withdrawn_by) == ("", "", "You may call me.", "erased")
    assert list(consents.consents_of(floor.organization.pk, ANN)) == [row], "who has the phone finds the record"
    assert not consents.consents_of(floor.organization.pk, BOB).exists()
    assert ANN not in str(list(Event.objects.values_list("data", flat=True)))
