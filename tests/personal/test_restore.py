"""The restore guide of docs/operations/backup.md repeats erasures, opt-outs and withdrawals since the dump."""

from __future__ import annotations

import json
import re
import shlex
from datetime import timedelta
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from cryptography.fernet import Fernet
from django.core.management import CommandError, call_command

from accounts.models import Organization
from dispatch.console.privacy.restore import OPERATOR
from dispatch.core import clock
from dispatch.core.loops import write_replay_list
from dispatch.core.models import Event, ReplayEntry
from dispatch.core.privacy import personal_data, replay
from dispatch.core.privacy.personal_data import DataSubject
from dispatch.jobs.models import Submission
from dispatch.leads import eligibility
from dispatch.leads.models import Campaign, Consent, DoNotCall, DoNotCallEverywhere
from dispatch.leads.rules.retries import LeadFacts
from dispatch.leads.services import consents, do_not_call
from dispatch.leads.services.consents import NewConsent
from dispatch.technicians.models import Technician
from dispatch.telephony.models import OptOut
from dispatch.telephony.services import sms
from tests.personal.search import KEPT_ON_LISTS, places_of
from tests.support import factories as make

pytestmark = pytest.mark.django_db
GUIDE = Path(__file__).parents[2] / "docs" / "operations" / "backup.md"
ERASED, EMAIL, OPTED_OUT, LISTED = "+16025550101", "erased@example.com", "+16025550102", "+16025550103"
UNKNOWN = "+16025550104"


@pytest.fixture
def organization() -> Organization:
    """A company with three customers and a technician: the state that is dumped."""
    made = make.organization(slug="acme")
    service = make.service_type(made)
    for name, phone, extra in (
        ("Erased", ERASED, {"email": EMAIL}),
        ("Out", OPTED_OUT, {}),
        ("Listed", LISTED, {}),
    ):
        Submission.objects.create(
            organization=made, status="processed", form={"phone": phone}, customer_name=f"{name} Quackenbush",
            customer_phone=phone, service_type=service, extra=extra,
        )  # fmt: skip
    make.technician(made, "Gone Umberfield", phone="+16025550105")
    return made


def commands() -> list[str]:
    """The commands of the guide, in its order."""
    blocks = re.findall(r"```sh\n(.*?)```", GUIDE.read_text(), re.S)
    return [line.strip() for block in blocks for line in block.splitlines() if line.strip()]


def run(line: str, folder: Path) -> str:
    python, manage, *arguments = shlex.split(line.replace("replay.jsonl", str(folder / "replay.jsonl")))
    assert (python, manage) == ("python", "manage.py")
    out = StringIO()
    call_command(*arguments, stdout=out)
    return out.getvalue()


class Dump:
    """The rows that the acts below change, and a way back to them."""

    def __init__(self, organization: Organization) -> None:
        self.organization = organization
        self.models = (Submission, Technician, OptOut, DoNotCall, DoNotCallEverywhere, Consent, ReplayEntry)
        self.rows = {model: list(model._default_manager.all()) for model in self.models}

    def restore(self) -> None:
        for model, rows in self.rows.items():
            model._default_manager.all().delete()
            model._default_manager.bulk_create(rows)
        Event.objects.filter(organization_id=self.organization.pk).delete()


def test_the_guide_repeats_what_happened_since_the_dump(organization: Organization, tmp_path: Path) -> None:
    before = DataSubject(organization.pk, phone=LISTED)
    do_not_call.add_to_list(organization.pk, LISTED, source="api", actor=OPERATOR)
    do_not_call.remove_from_list(DoNotCall.objects.get(), actor=OPERATOR)
    dump = Dump(organization)
    technician = Technician.objects.get()
    personal_data.erase_person(DataSubject(organization.pk, email=EMAIL), actor=OPERATOR)
    personal_data.erase_person(
        DataSubject(organization.pk, phone=str(technician.phone), technician_id=technician.pk), actor=OPERATOR
    )
    sms.opt_out(organization.pk, OPTED_OUT, actor=OPERATOR)
    sms.opt_out(organization.pk, LISTED, actor=OPERATOR)
    sms.opt_in(organization.pk, LISTED, actor=OPERATOR)
    do_not_call.add_to_list(organization.pk, LISTED, source="api", actor=OPERATOR)
    do_not_call.add_to_list(organization.pk, UNKNOWN, source="key", actor=OPERATOR)
    write_list, *after = commands()
    assert re.search(r"\d+ entries\.", run(write_list, tmp_path))
    listed = (tmp_path / "replay.jsonl").read_text()
    assert not re.search(r"\+1602|@|Quackenbush", listed)
    dump.restore()
    assert places_of(["Erased Quackenbush", "Gone Umberfield", EMAIL])
    assert not OptOut.objects.exists()

    assert [line.split()[2] for line in after] == ["after_restore", "replay_after_restore"]
    told = "".join(run(line, tmp_path) for line in after)
    assert places_of(["Erased Quackenbush", "Gone Umberfield", EMAIL, ERASED]) - KEPT_ON_LISTS == set()
    assert {str(row.phone) for row in OptOut.objects.all()} == {OPTED_OUT}, "the opt-in was later"
    assert {str(row.phone) for row in DoNotCall.objects.all()} == {LISTED}
    assert Submission.objects.filter(customer_phone=before.phone).exists()
    assert "2 of numbers that this database does not know" in told, "do-not-call by key is an opt-out of texts too"
    assert "0 entries repeated, 0 of numbers" in run(after[1], tmp_path)
    assert "Quackenbush" in "".join(Submission.objects.values_list("customer_name", flat=True))


def test_an_unknown_number_is_refused_when_it_appears(organization: Organization, tmp_path: Path) -> None:
    dump = Dump(organization)
    do_not_call.add_to_list(organization.pk, UNKNOWN, source="key", actor=OPERATOR)
    replay.write_list(tmp_path / "replay.jsonl")
    dump.restore()
    assert not sms.is_opted_out(organization.pk, UNKNOWN)
    run("python manage.py replay_after_restore replay.jsonl", tmp_path)
    other = make.organization()
    assert sms.is_opted_out(organization.pk, UNKNOWN)
    assert not sms.is_opted_out(organization.pk, ERASED)
    assert not sms.is_opted_out(other.pk, UNKNOWN)
    phones = {UNKNOWN, ERASED}
    kinds = (replay.DO_NOT_CALL, replay.OPT_OUT)
    assert replay.find_refused(organization.pk, phones, *kinds) == {UNKNOWN}


def test_a_lead_of_an_unknown_number_is_refused_when_it_is_due(organization: Organization, tmp_path: Path) -> None:
    dump = Dump(organization)
    do_not_call.add_to_list(organization.pk, UNKNOWN, source="api", actor=OPERATOR)
    replay.write_list(tmp_path / "replay.jsonl")
    dump.restore()
    run("python manage.py replay_after_restore replay.jsonl", tmp_path)
    made = Campaign.objects.create(
        organization=organization, code="spring", name="Spring", pool=make.pool(organization), script="Hello"
    )
    now = clock.now()
    leads = [
        LeadFacts(number, organization.pk, made.pk, phone, None, None, "", "", 0, 0, now, now, "")
        for number, phone in enumerate((UNKNOWN, ERASED))
    ]
    assert eligibility.load_batch(leads, now).refused == {(organization.pk, UNKNOWN)}


def give(organization: Organization, phone: str, purpose: str = "marketing", *, days_ago: int = 9) -> bool:
    """Record a consent, as the API and imports do."""
    given = NewConsent(clock.now() - timedelta(days=days_ago), "web form", purpose)
    return bool(consents.record_consents(organization.pk, [(phone, given)]))


def test_withdrawn_consent_stays_withdrawn(organization: Organization, tmp_path: Path) -> None:
    for purpose in ("marketing", "surveys"):
        give(organization, LISTED, purpose)
    give(organization, OPTED_OUT)
    clock.travel(60)
    dump = Dump(organization)
    give(organization, UNKNOWN)
    admin = make.admin(organization)
    marketing = Consent.objects.get(phone=LISTED, purpose="marketing")
    browser = make.browser(admin)
    browser.post(  # by an Admin
        "/admin/leads/consent/",
        {"action": "withdraw", "_selected_action": [marketing.pk], "confirmed": "1", "seen": "1"},
    )
    browser.post(f"/api/v1/consents/{Consent.objects.get(phone=UNKNOWN).pk}/withdraw/")  # by the API
    assert set(Consent.objects.filter(withdrawn_at=None).values_list("phone", "purpose")) == {
        (LISTED, "surveys"), (OPTED_OUT, "marketing"),
    }  # fmt: skip
    replay.write_list(tmp_path / "replay.jsonl")
    clock.travel(3600)
    dump.restore()
    assert Consent.objects.filter(withdrawn_at=None).count() == 3

    told = run("python manage.py replay_after_restore replay.jsonl", tmp_path)
    assert "1 entry repeated, 1 of numbers that this database does not know" in told
    assert set(Consent.objects.filter(withdrawn_at=None).values_list("phone", "purpose")) == {
        (LISTED, "surveys"), (OPTED_OUT, "marketing"),
    }  # fmt: skip
    assert not give(organization, LISTED), "given before it was withdrawn"
    assert not give(organization, UNKNOWN), "the database never had this one"
    assert give(make.organization(), UNKNOWN)
    assert give(organization, UNKNOWN, days_ago=0), "given later"
    assert give(organization, LISTED, days_ago=0), "the withdrawal counts from its own time, not from the restore"


def test_younger_consent_with_the_same_id_is_left(organization: Organization, tmp_path: Path) -> None:
    give(organization, LISTED)
    consent = Consent.objects.get()
    consents.withdraw(organization.pk, LISTED, by="api", actor=OPERATOR)
    replay.write_list(tmp_path / "replay.jsonl")
    ReplayEntry.objects.all().delete()
    clock.travel(60)
    Consent.objects.update(withdrawn_at=None, given_at=clock.now(), created_at=clock.now())
    run("python manage.py replay_after_restore replay.jsonl", tmp_path)
    consent.refresh_from_db()
    assert consent.withdrawn_at is None


def test_an_open_job_is_reported_and_replayed_later(organization: Organization, tmp_path: Path) -> None:
    dump = Dump(organization)
    personal_data.erase_person(DataSubject(organization.pk, phone=ERASED), actor=OPERATOR)
    replay.write_list(tmp_path / "replay.jsonl")
    dump.restore()
    Submission.objects.filter(customer_phone=ERASED).update(status="received", next_start_at=clock.now())
    with pytest.raises(CommandError, match=r"Entries not repeated: [12]\."):
        run("python manage.py replay_after_restore replay.jsonl", tmp_path)
    assert Submission.objects.filter(customer_phone=ERASED).exists()
    Submission.objects.update(status="processed")
    run("python manage.py replay_after_restore replay.jsonl", tmp_path)
    assert not Submission.objects.filter(customer_phone=ERASED).exists()


def test_an_id_that_was_given_to_another_technician_is_left(organization: Organization, tmp_path: Path) -> None:
    technician = Technician.objects.get()
    replay.record(organization.pk, replay.TECHNICIAN_ERASURE, subject_id=technician.pk)
    replay.write_list(tmp_path / "replay.jsonl")
    ReplayEntry.objects.all().delete()
    clock.travel(60)
    Technician.objects.update(created_at=clock.now())
    run("python manage.py replay_after_restore replay.jsonl", tmp_path)
    technician.refresh_from_db()
    assert technician.name == "Gone Umberfield"


def test_a_missing_key_is_named(organization: Organization, tmp_path: Path, settings: Any) -> None:
    dump = Dump(organization)
    sms.opt_out(organization.pk, OPTED_OUT, actor=OPERATOR)
    replay.write_list(tmp_path / "replay.jsonl")
    dump.restore()
    old, new = settings.FIELD_ENCRYPTION_KEYS, Fernet.generate_key().decode()
    settings.FIELD_ENCRYPTION_KEYS = [new]
    with pytest.raises(CommandError, match="Entries not repeated: 1"):
        run("python manage.py replay_after_restore replay.jsonl", tmp_path)
    settings.FIELD_ENCRYPTION_KEYS = [new, *old]
    run("python manage.py replay_after_restore replay.jsonl", tmp_path)
    assert {str(row.phone) for row in OptOut.objects.all()} == {OPTED_OUT}


def test_a_dispatcher_writes_the_list(organization: Organization, tmp_path: Path, settings: Any) -> None:
    write_replay_list()
    settings.REPLAY_LIST_FILE = str(tmp_path / "list.jsonl")
    sms.opt_out(organization.pk, OPTED_OUT, actor=OPERATOR)
    write_replay_list()
    (row,) = map(json.loads, (tmp_path / "list.jsonl").read_text().splitlines())
    assert (row["kind"], row["organization_id"]) == ("opt_out", organization.pk)
    (tmp_path / "list.jsonl").write_text("{}\n")
    with pytest.raises(CommandError, match="line 1: not an entry"):
        call_command("replay_after_restore", str(tmp_path / "list.jsonl"))


def test_entries_that_the_database_does_not_have_stay_in_the_list(
    organization: Organization, tmp_path: Path
) -> None:
    file = tmp_path / "list.jsonl"
    replay.record(organization.pk, replay.OPT_OUT, OPTED_OUT)
    ReplayEntry.objects.update(at=clock.now() - timedelta(days=replay.KEPT_DAYS - 1))
    replay.record(organization.pk, replay.ERASURE, ERASED)
    assert replay.write_list(file) == 2
    before = {entry.uid: entry for entry in replay.read_list(file)}
    ReplayEntry.objects.filter(kind=replay.ERASURE).delete()
    replay.record(organization.pk, replay.OPT_OUT, LISTED)
    assert replay.write_list(file) == 3
    after = {entry.uid: entry for entry in replay.read_list(file)}
    assert before.items() < after.items()
    clock.travel(2 * 86400)
    assert replay.write_list(file) == 2, "an old entry is dropped"


def test_an_unreadable_list_is_kept_under_another_name(organization: Organization, tmp_path: Path) -> None:
    file = tmp_path / "list.jsonl"
    file.write_text("{}\n")
    replay.record(organization.pk, replay.OPT_OUT, OPTED_OUT)
    assert replay.write_list(file) == 1
    assert (tmp_path / "list.jsonl.unreadable").read_text() == "{}\n"


def test_a_number_on_every_organizations_list_is_repeated(organization: Organization, tmp_path: Path) -> None:
    replay.record(None, replay.DO_NOT_CALL, OPTED_OUT)
    replay.write_list(tmp_path / "replay.jsonl")
    ReplayEntry.objects.all().delete()
    run("python manage.py replay_after_restore replay.jsonl", tmp_path)
    assert str(DoNotCallEverywhere.objects.get().phone) == OPTED_OUT
