"""Hand-over notes: a dispatcher who ends the shift leaves one, and everyone on duty sees it until it is read."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.core.exceptions import ValidationError
from django.test import Client
from django.urls import reverse

from accounts import personal
from accounts.handover_notes import retention, services
from accounts.models import HandoverNote, Membership, User
from dispatch.console.board.handover import split_text
from dispatch.core import clock
from dispatch.core.events import SYSTEM
from dispatch.core.models import Event
from dispatch.core.privacy.personal_data import DataSubject
from tests.console.test_board import HTMX, Desk
from tests.support import factories as make

pytestmark = pytest.mark.django_db


@pytest.fixture
def desk(browser) -> Desk:
    return Desk(browser)


def end_shift(client: Client, note: str = "") -> Any:
    return client.post(reverse("console:duty"), {"on_duty": "0", "note": note}, headers=HTMX)


def begin_shift(client: Client) -> Any:
    return client.post(reverse("console:duty"), {"on_duty": "1"}, headers=HTMX)


def notes_on_board(client: Client) -> str:
    """Return the notes that the board shows: the same in the page and in the part that reloads itself."""
    part = client.get(reverse("console:handover_notes"), headers=HTMX).content.decode()
    page = client.get(f"{reverse('console:board')}?view=all").content.decode()
    assert page.count('class="card handover"') == part.count('class="card handover"')
    return part.strip()


def member(person: User) -> Membership:
    return person.memberships.get()


def test_note_reaches_the_next_shift_until_it_is_read(desk, browser):
    kim = make.dispatcher(desk.organization, "Kim", on_duty=False)
    other = browser(kim)
    begin_shift(desk.client)
    answer = end_shift(desk.client, "  The Ortegas want a call\r\nbefore noon.  ")
    assert "Your note is on the board" in answer["HX-Trigger"]
    assert "Go on duty" in answer.content.decode()
    assert notes_on_board(other) == "", "not on duty yet"
    begin_shift(other)
    shown = notes_on_board(other)
    assert "The Ortegas want a call\nbefore noon." in shown
    assert f"<bdi>{desk.person.name}</bdi>" in shown
    note = HandoverNote.objects.get()
    left = other.post(reverse("console:read_handover_note", args=[note.pk]), headers=HTMX)
    assert left.content.decode().strip() == ""
    assert notes_on_board(other) == ""
    events = list(Event.objects.filter(subject_type="handover_note").order_by("id"))
    assert [(one.kind, one.actor_id) for one in events] == [
        ("handover_note.written", desk.person.pk), ("handover_note.read", kim.pk),
    ]  # fmt: skip
    assert all(one.data == {} for one in events), "a note may name customers, and events are kept"


def test_a_note_that_nobody_has_read_stays(desk, browser):
    note = services.end_shift(_on_duty(desk.person).pk, "Keys are in the safe", actor=SYSTEM)
    clock.travel(timedelta(days=10).total_seconds())
    assert list(services.open_notes(desk.organization, desk.person)) == [note], (
        "its author sees that nobody read it"
    )
    kim, lee = (make.dispatcher(desk.organization, name) for name in ("Kim", "Lee"))
    services.mark_as_read(desk.organization, note.pk, desk.person, actor=SYSTEM)
    clock.travel(timedelta(days=2).total_seconds())
    assert list(services.open_notes(desk.organization, lee)) == [note], "only its author has read it"
    services.mark_as_read(desk.organization, note.pk, kim, actor=SYSTEM)
    assert not services.open_notes(desk.organization, desk.person)
    assert list(services.open_notes(desk.organization, lee)) == [note], "Friday's note, on Monday morning"
    clock.travel(timedelta(hours=25).total_seconds())
    assert not services.open_notes(desk.organization, lee), "read a day ago"


def test_everyone_who_begins_a_shift_within_a_day_sees_the_note(desk):
    note = services.end_shift(_on_duty(desk.person).pk, "Keys are in the safe", actor=SYSTEM)
    kim, lee = (make.dispatcher(desk.organization, name) for name in ("Kim", "Lee"))
    for _ in range(2):  # a second click
        services.mark_as_read(desk.organization, note.pk, kim, actor=SYSTEM)
    assert Event.objects.filter(kind="handover_note.read").count() == 1
    assert not services.open_notes(desk.organization, kim)
    assert list(services.open_notes(desk.organization, lee)) == [note]
    assert not services.open_notes(desk.organization, desk.person), "the author knows it"


def test_shift_ends_without_a_note_and_a_form_sent_twice_leaves_one(desk):
    end_shift(desk.client)
    assert not HandoverNote.objects.exists()
    begin_shift(desk.client)
    for _ in range(2):
        assert "Your note is on the board" in end_shift(desk.client, "Once")["HX-Trigger"]
    assert HandoverNote.objects.count() == 1
    second_tab = end_shift(desk.client, "Written in another tab, which still says On duty")
    assert "Your note is on the board" in second_tab["HX-Trigger"]
    assert HandoverNote.objects.count() == 2
    clock.travel(timedelta(hours=1).total_seconds())
    end_shift(desk.client, "Once")
    assert HandoverNote.objects.count() == 3


def test_refused_note_leaves_the_member_on_duty(desk):
    begin_shift(desk.client)
    answer = end_shift(desk.client, "x" * 2001)
    assert (answer.status_code, "too long (2001 characters" in answer["HX-Trigger"]) == (204, True)
    without_script = desk.client.post(reverse("console:duty"), {"on_duty": "0", "note": "x" * 10_000})
    assert without_script.status_code == 400
    assert "Nothing was changed" in without_script.content.decode()
    assert member(desk.person).on_duty
    with pytest.raises(ValidationError, match="can't be seen"):
        services.clean_text("a\x1bb")


def test_notes_of_another_organization_are_neither_shown_nor_read(desk, browser):
    services.end_shift(_on_duty(desk.person).pk, "Ours", actor=SYSTEM)
    stranger = make.dispatcher(make.organization("Elsewhere"), "Sam", on_duty=True)
    client = browser(stranger)
    assert notes_on_board(client) == ""
    note = HandoverNote.objects.get()
    assert client.post(reverse("console:read_handover_note", args=[note.pk]), headers=HTMX).status_code == 404
    superuser = browser(User.objects.create_superuser("root@example.com", "-", name="Root"))
    superuser.post(reverse("console:choose_organization"), {"organization": desk.organization.slug})
    assert notes_on_board(superuser) == "", "of no shift"
    assert superuser.post(reverse("console:read_handover_note", args=[note.pk]), headers=HTMX).status_code == 404
    assert not note.readings.exists()


def test_a_burst_of_notes_shows_the_oldest_and_how_many_follow(desk):
    _on_duty(desk.person)
    author = User.objects.create_user("former@example.com", "-", name="\u202eeroM")
    texts = [f"Note {number} <script>alert(1)</script>" for number in range(300)]
    HandoverNote.objects.bulk_create(
        HandoverNote(organization=desk.organization, author=author, text=text) for text in texts
    )
    shown = notes_on_board(desk.client)
    assert (shown.count('class="card handover"'), shown.count("<script>")) == (services.MAX_SHOWN, 0)
    assert "<bdi>\u202eeroM</bdi>" in shown
    assert "280 more notes appear here as you read these." in shown
    author.delete()
    assert notes_on_board(desk.client).count("<bdi>") == 0
    assert str(HandoverNote.objects.first()).startswith("—, ")


def test_only_numbers_of_the_organizations_jobs_are_links(desk, browser):
    job, foreign = desk.job(), Desk(browser).job()
    begin_shift(desk.client)
    end_shift(desk.client, f"<b>#{job.pk}</b> waits, unit #{foreign.pk} too")
    begin_shift(desk.client)
    shown = notes_on_board(desk.client)
    assert f'data-open="{job.pk}">#{job.pk}</a>' in shown
    assert "&lt;b&gt;" in shown
    assert f"unit #{foreign.pk} too" in shown
    assert split_text("#1", set()) == [("#1", None)]


def test_note_is_in_the_admin_and_in_the_export_of_its_author(desk, browser):
    note = services.end_shift(_on_duty(desk.person).pk, "Keys are in the safe", actor=SYSTEM)
    admin = browser(make.admin(desk.organization, "Grace"))
    page = admin.get("/admin/accounts/handovernote/").content.decode()
    assert ("Keys are in the safe" in page, "Show all" in page) == (True, False)
    local = note.written_at.astimezone(ZoneInfo(desk.organization.time_zone))
    page = admin.get(f"/admin/accounts/handovernote/{note.pk}/change/").content.decode()
    assert f"{desk.person}, {local:%Y-%m-%d %H:%M}" in page
    person = DataSubject(desk.organization.pk, user_id=desk.person.pk)
    assert personal.rows(person)["handover_notes"][0]["text"] == "Keys are in the safe"


def test_old_notes_are_deleted_in_batches(desk):
    for _ in range(3):
        services.end_shift(_on_duty(desk.person).pk, "Old", actor=SYSTEM)
    soon = clock.now() + timedelta(seconds=1)
    assert [retention.delete_notes(desk.organization.pk, soon, 2) for _ in range(2)] == [2, 1]
    assert not HandoverNote.objects.exists()


def _on_duty(person: User) -> Membership:
    row = member(person)
    Membership.objects.filter(pk=row.pk).update(on_duty=True)
    return row
