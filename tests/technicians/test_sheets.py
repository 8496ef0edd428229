"""Check CSV files of technicians: every viewer may export, and Admins import after a preview."""

from __future__ import annotations

import csv
import io
import re

import pytest
from django.contrib.admin.models import LogEntry
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.urls import reverse

from dispatch.core.models import Event
from dispatch.technicians.models import Technician
from tests.support import factories as make
from tests.support.factories import browser

pytestmark = pytest.mark.django_db
LIST = "admin:technicians_technician_changelist"
IMPORT = "admin:technicians_technician_import"
EXPORT = "admin:technicians_technician_export_all"


@pytest.fixture
def phoenix():
    return make.organization("Desert Air")


@pytest.fixture
def admin(phoenix) -> Client:
    return browser(make.admin(phoenix, "Adam"))


def file(content: str | bytes) -> SimpleUploadedFile:
    return SimpleUploadedFile("crew.csv", content.encode() if isinstance(content, str) else content, "text/csv")


def text(answer) -> str:
    return " ".join(answer.content.decode().split())


def look(client: Client, content: str, **more):
    return client.post(reverse(IMPORT), {"file": file(content), **more})


def agree(client: Client, looked_at, **more):
    """What the browser sends when the person agrees."""
    page = looked_at.context
    sent = {"organization": page["chosen"].pk, "digest": page["plan"].digest, "text": page["text"], **more}
    return client.post(reverse(IMPORT), sent, follow=True)


def exported(client: Client) -> list[dict[str, str]]:
    answer = client.get(reverse(EXPORT))
    assert answer["Content-Type"].startswith("text/csv")
    return list(csv.DictReader(io.StringIO(answer.content.decode("utf-8-sig"))))


def test_an_export_has_ones_own_technicians_and_no_formula(phoenix):
    gas = make.skill(phoenix, "gas")
    make.technician(phoenix, '=HYPERLINK("http://x")', phone="+16022550101", skills=(gas,), radius_m=9000)
    make.technician(make.organization("Elsewhere"), "Stranger")
    [row] = exported(browser(make.dispatcher(phoenix)))
    assert row["name"] == '\'=HYPERLINK("http://x")'
    assert (row["phone"], row["skills"], row["radius_m"], row["on_duty"]) == (
        "'+16022550101",
        "gas",
        "9000",
        "yes",
    )


def test_an_export_of_those_chosen(phoenix, admin):
    one, _ = make.technician(phoenix, "Ana"), make.technician(phoenix, "Ben")
    answer = admin.post(reverse(LIST), {"action": "export_selected", "_selected_action": [one.pk]})
    assert "Ana" in answer.content.decode()
    assert "Ben" not in answer.content.decode()


def test_an_export_that_comes_back_changes_nothing(phoenix, admin):
    make.technician(phoenix, "-Ana", skills=(make.skill(phoenix, "gas"), make.skill(phoenix, "cooling")))
    make.technician(phoenix, "Gone", is_active=False, on_duty=False)
    make.technician(phoenix, "Bob;=cmd|'/C calc'!A0;'-x")
    content = admin.get(reverse(EXPORT)).content.decode("utf-8-sig")
    assert "Bob;'=cmd" in content
    assert "0 to add, 0 to change, 3 unchanged, 0 with errors" in text(look(admin, content))


def test_preview_shows_changes_and_saves_nothing(phoenix, admin):
    make.skill(phoenix, "gas")
    ana = make.technician(phoenix, "Ana", phone="+16022550101", radius_m=9000)
    content = (
        "Name,Phone,zip,skills,radius_m,colour\n"
        "Ana Ruiz,602 255 0101,,gas,,red\n"
        "Ben,(602) 255-0102,85281,,12000,\n"
        "Eve,12,00000,heating,far,\n"
        "Ben again,+16022550102,85281,,,\n"
    )
    answer = look(admin, content)
    page = text(answer)
    assert "1 to add, 1 to change, 0 unchanged, 2 with errors" in page
    assert "Ignored columns: colour." in page
    wrong = {line.number: dict(line.errors) for line in answer.context["plan"].of("wrong")}
    assert wrong[4].keys() == {"phone", "zip", "skills", "radius_m"}
    assert "Unknown skill code: heating." in wrong[4]["skills"]
    assert wrong[5] == {"phone": "Row 3 has the same phone number."}
    [changed] = answer.context["plan"].of("changed")
    assert {(one.name, one.before, one.after) for one in changed.changes} == {
        ("name", "Ana", "Ana Ruiz"), ("radius_m", "9000", "—"), ("skills", "—", "gas"),
    }  # fmt: skip
    ana.refresh_from_db()
    assert (ana.name, Technician.objects.count()) == ("Ana", 1)


def test_previewed_changes_are_saved_after_confirmation(phoenix, admin):
    gas = make.skill(phoenix, "gas")
    ana = make.technician(phoenix, "Ana", phone="+16022550101")
    moved = ana.position_at
    content = (
        "name;phone;zip;skills;on_duty;max_open_jobs\n"
        "Ana;+16022550101;;gas;no;3\nBen;+16022550102;85281;gas;;\nEve;12;85281;;;\n"
    )
    page = text(agree(admin, look(admin, content)))
    assert "1 added, 1 changed. 1 row with errors skipped." in page
    ana.refresh_from_db()
    assert (ana.on_duty, ana.max_open_jobs, ana.skill_ids, ana.position_at) == (False, 3, [gas.pk], moved)
    ben = Technician.objects.get(name="Ben")
    assert (ben.organization, ben.skill_ids, round(ben.lat, 1), ben.on_duty) == (phoenix, [gas.pk], 33.4, True)
    assert Event.objects.get(kind="technician.duty_off", subject_id=ana.pk).actor_label == "Adam"
    notes = dict(LogEntry.objects.values_list("object_id", "change_message"))
    assert "Added from a CSV file." in notes[str(ben.pk)]
    assert "skills" in notes[str(ana.pk)]


def test_a_change_in_between_is_shown_instead_of_overwritten(phoenix, admin):
    looked = look(admin, "name,phone,zip\nBen,+16022550102,85281\n")
    make.technician(phoenix, "Bert", phone="+16022550102")
    page = text(agree(admin, looked))
    assert "The data changed after this preview, so nothing was saved." in page
    assert Technician.objects.get().name == "Bert"


def test_another_organization_s_technicians_cannot_be_reached(phoenix, admin):
    stranger = make.technician(make.organization("Elsewhere"), "Stranger", phone="+16022550109")
    looked = look(
        admin, f"id,name,phone\n{stranger.pk},Hijacked,+16022550109\n", organization=stranger.organization_id
    )
    assert looked.context["chosen"] == phoenix
    assert "No technician has this id." in text(looked)
    assert "Stranger" not in text(looked)
    agree(admin, looked, organization=stranger.organization_id)
    stranger.refresh_from_db()
    assert stranger.name == "Stranger"


def test_phone_in_use_is_rejected_on_import(phoenix, admin):
    ana = make.technician(phoenix, "Ana", phone="+16022550101")
    ben = make.technician(phoenix, "Ben", phone="+16022550102")
    looked = look(admin, f"id,phone\n{ana.pk},+16022550102\n{ben.pk},+16022550103\n{ana.pk},+16022550104\n")
    wrong = {line.number: line.errors for line in looked.context["plan"].of("wrong")}
    assert wrong[2] == [("phone", "Ben has this phone number.")]
    assert wrong[4] == [("id", "Row 2 has the same technician.")]
    agree(admin, looked)
    ben.refresh_from_db()
    assert ben.phone.as_e164 == "+16022550103"


@pytest.mark.parametrize(
    ("cells", "column"),
    [
        ("Ben,+16022550102,91,-112,", "lat"),
        ("Ben,+16022550102,nan,-112,", "lat"),
        ("Ben,+16022550102,33,,", "lng"),
        ("Ben,+16022550102,,,", "lat"),
        (",+16022550102,33,-112,", "name"),
        ("Ben,,33,-112,", "phone"),
        ("Ben,banana,33,-112,", "phone"),
        ("Ben,n/a,33,-112,", "phone"),
        ("Ben,-,33,-112,", "phone"),
        ("Ben,+1602,33,-112,", "phone"),
        ("Ben,+16022550102,33,-112,Mars/Base", "time_zone"),
        (f"{'B' * 121},+16022550102,33,-112,", "name"),
    ],
)
def test_errors_name_their_column(admin, cells, column):
    looked = look(admin, f"name,phone,lat,lng,time_zone\n{cells}\n")
    [line] = looked.context["plan"].lines
    assert [name for name, _ in line.errors] == [column]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("name\nAna\n", "must name the columns, including phone"),
        ("phone,phone\n1,2\n", "contains duplicate columns: phone"),
        ("phone\n", "no rows below its header"),
        (b"phone\n\xff\xfe", "not UTF-8"),
        ('phone\n"602\n', "not valid CSV"),
        ("phone\n" + "6025550134\n" * 2001, "more than 2,000 rows"),
        ("phone" + ",a" * 20_000 + "\n1\n", "A file can have at most 100."),
    ],
)
def test_a_file_that_cannot_be_read_says_why(admin, content, words):
    answer = admin.post(reverse(IMPORT), {"file": file(content)})
    assert answer.status_code == 422
    assert words in text(answer)


def test_without_a_file_it_asks_for_one(admin):
    assert "Choose a file." in text(admin.post(reverse(IMPORT)))


def test_dispatchers_do_not_import(phoenix):
    client = browser(make.dispatcher(phoenix))
    assert client.get(reverse(IMPORT)).status_code == 403
    assert look(client, "name,phone,zip\nBen,+16022550102,85281\n").status_code == 403
    assert "Import from CSV" not in text(client.get(reverse(LIST)))


def test_member_of_several_organizations_chooses_one(phoenix):
    from accounts.models import Membership

    other = make.organization("Silver State")
    person = make.admin(phoenix)
    Membership.objects.create(organization=other, user=person, role="admin")
    client = browser(person)
    looked = look(client, "name,phone,zip\nBen,+16022550102,85281\n", organization=other.pk)
    agree(client, looked)
    assert Technician.objects.get().organization == other
    assert re.search(r"Silver State", client.get(reverse(EXPORT)).content.decode())


def test_a_bad_phone_leaves_only_its_own_line_out(phoenix, admin):
    content = "name,phone,lat,lng\nAna,+16022550101,33,-112\nBen,banana,33,-112\nCid,n/a,33,-112\n"
    looked = look(admin, content)
    assert looked.status_code == 200
    assert "“banana” is not a valid phone number. Write it as +16025550123." in text(looked)
    agree(admin, looked)
    assert [one.name for one in Technician.objects.of(phoenix)] == ["Ana"]
