"""Technicians in the admin: edited by Admins, put on and off duty by Dispatchers too."""

import re

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client
from django.urls import reverse

from accounts.admin import base
from dispatch.core.events import SYSTEM
from dispatch.core.models import Event
from dispatch.technicians import services
from dispatch.technicians.models import Skill, Technician
from tests.jobs.test_locked_technician import impatient  # noqa: F401
from tests.support import factories as make
from tests.support.row_locks import held

pytestmark = pytest.mark.django_db
LIST = "admin:technicians_technician_changelist"


@pytest.fixture
def phoenix():
    return make.organization("Desert Air", distance_unit="km")


def signed_in(person):
    client = Client()
    client.force_login(person, backend="django.contrib.auth.backends.ModelBackend")
    return client


def form(**changes):
    shifts = {
        f"shifts-{name}_FORMS": n for name, n in (("TOTAL", 1), ("INITIAL", 0), ("MIN_NUM", 0), ("MAX_NUM", 1000))
    }
    shift = {"shifts-0-weekday": 1, "shifts-0-starts": "08:00", "shifts-0-ends": "12:00"}
    row = {"name": "Ana", "phone": "+16022550101", "lat": 33.45, "lng": -112.07, "max_open_jobs": 2}
    return {**shifts, **shift, **row, "on_duty": "on", "is_active": "on", **changes}


def test_an_admin_adds_a_technician_with_skills_and_shifts(phoenix):
    gas = make.skill(phoenix, "gas")
    client = signed_in(make.admin(phoenix))
    answer = client.post(
        reverse("admin:technicians_technician_add"), form(organization=phoenix.pk, skills=[gas.pk])
    )
    assert answer.status_code == 302, answer.context["errors"]
    made = Technician.objects.get(name="Ana")
    assert (made.organization, made.skill_ids, made.hours) == (phoenix, [gas.pk], ((115_200, 129_600),))


def test_editing_moves_the_cell_and_logs_the_duty(phoenix):
    one = make.technician(phoenix, "Ana")
    cell, moved = one.cell, one.position_at
    client = signed_in(make.admin(phoenix, "Adam"))
    changes = form(lat=34.5, name="Ana R.", **{"shifts-0-weekday": "", "shifts-0-starts": "", "shifts-0-ends": ""})
    del changes["on_duty"]
    answer = client.post(reverse("admin:technicians_technician_change", args=[one.pk]), changes)
    assert answer.status_code == 302, answer.context["errors"]
    one.refresh_from_db()
    assert (one.name, one.on_duty, one.phone.as_e164) == ("Ana R.", False, "+16022550101")
    assert one.cell != cell
    assert one.position_at > moved
    assert Event.objects.get(kind="technician.duty_off", subject_id=one.pk).actor_label == "Adam"


@pytest.mark.django_db(transaction=True)
def test_a_locked_technician_is_named_and_the_others_are_taken_off_duty(phoenix, impatient):  # noqa: F811
    ann, bob, cid = crew = [make.technician(phoenix, name) for name in ("Ann", "Bob", "Cid")]
    client = signed_in(make.admin(phoenix))
    chosen = {"action": "off_duty_now", "_selected_action": [one.pk for one in crew], "seen": "3"}
    with held(bob):
        page = client.post(reverse(LIST), {**chosen, "confirmed": "1"}, follow=True).content.decode()
    assert "Bob: Someone else is changing this." in page
    assert "2 technicians are now off duty." in page
    assert set(Technician.objects.filter(on_duty=False)) == {ann, cid}
    assert set(LogEntry.objects.values_list("object_id", flat=True)) == {str(ann.pk), str(cid.pk)}


def test_too_many_technicians_at_once_are_refused(phoenix, monkeypatch):
    monkeypatch.setattr(base, "MAX_CHANGED", 2)
    for _ in range(3):
        make.technician(phoenix)
    sent = {"action": "off_duty_now", "_selected_action": [0], "select_across": "1", "confirmed": "1", "seen": "3"}
    page = signed_in(make.admin(phoenix)).post(reverse(LIST), sent, follow=True).content.decode()
    assert "Change at most 2 rows at once. Nothing was changed." in page
    assert not Technician.objects.filter(on_duty=False).exists()


def test_a_page_keeps_a_duty_and_a_position_that_changed_since_it_was_opened(phoenix):
    ana = make.technician(phoenix, "Ana", on_duty=False)
    client = signed_in(make.admin(phoenix))
    page = reverse("admin:technicians_technician_change", args=[ana.pk])
    shown = dict(re.findall(r'name="(initial-[a-z_]+)" value="([^"]*)"', client.get(page).content.decode()))
    services.change_technician(ana.pk, {"on_duty": True, "lat": 33.6, "lng": -112.2}, actor=SYSTEM)
    sent = form(name="Ana R.", lat=shown["initial-lat"], lng=shown["initial-lng"], **shown)
    del sent["on_duty"]
    assert client.post(page, sent).status_code == 302
    ana.refresh_from_db()
    assert (ana.name, ana.on_duty, ana.lat, ana.lng) == ("Ana R.", True, 33.6, -112.2)


def test_a_page_that_moves_a_technician_saves_the_whole_position(phoenix):
    ana = make.technician(phoenix, "Ana")
    client = signed_in(make.admin(phoenix))
    page = reverse("admin:technicians_technician_change", args=[ana.pk])
    shown = dict(re.findall(r'name="(initial-[a-z_]+)" value="([^"]*)"', client.get(page).content.decode()))
    services.change_technician(ana.pk, {"lat": 33.6, "lng": -112.2}, actor=SYSTEM)
    sent = form(lat=34.5, lng=shown["initial-lng"], **shown)
    assert client.post(page, sent).status_code == 302
    ana.refresh_from_db()
    assert (ana.lat, ana.lng) == (34.5, float(shown["initial-lng"]))


def test_a_dispatcher_takes_many_off_duty_at_once_and_edits_none(phoenix):
    ids = [make.technician(phoenix).pk for _ in range(3)]
    stranger = make.technician(make.organization("Elsewhere"))
    client = signed_in(make.dispatcher(phoenix, "Dora"))
    chosen = {"action": "off_duty_now", "_selected_action": [*ids, stranger.pk]}
    asked = " ".join(client.post(reverse(LIST), chosen).content.decode().split())
    assert "Take off duty: 3 technicians" in asked
    assert str(stranger) not in asked
    assert not Technician.objects.filter(on_duty=False).exists()
    answer = client.post(reverse(LIST), {**chosen, "confirmed": "1", "seen": "3"}, follow=True)
    assert "3 technicians are now off duty." in answer.content.decode()
    assert Technician.objects.filter(on_duty=True).get() == stranger
    assert Event.objects.filter(kind="technician.duty_off", actor_label="Dora").count() == 3
    history = client.get(reverse("admin:technicians_technician_history", args=[ids[0]])).content.decode()
    assert "Taken off duty." in history
    assert client.post(reverse("admin:technicians_technician_change", args=[ids[0]]), form()).status_code == 403


def test_the_list_shows_ones_own_technicians_with_their_work(phoenix):
    gas = make.skill(phoenix, "gas")
    make.technician(phoenix, "Ana Ruiz", skills=(gas,), max_open_jobs=2, radius_m=15_000)
    make.technician(make.organization("Elsewhere"), "Stranger")
    page = signed_in(make.admin(phoenix)).get(reverse(LIST)).content.decode()
    for words in ("Ana Ruiz", "Gas", "0 of 2", "15 km"):
        assert words in page
    assert "Stranger" not in page


def test_technicians_are_switched_off_not_deleted(phoenix):
    one = make.technician(phoenix)
    client = signed_in(make.admin(phoenix))
    assert client.post(reverse("admin:technicians_technician_delete", args=[one.pk])).status_code == 403


def test_each_change_of_a_skill_is_in_the_event_log_with_its_actor(phoenix):
    client = signed_in(make.admin(phoenix, "Ada"))
    added = {"organization": phoenix.pk, "name": "Gas", "code": "gas"}
    client.post(reverse("admin:technicians_skill_add"), added)
    skill = Skill.objects.get()
    page = reverse("admin:technicians_skill_change", args=[skill.pk])
    client.post(page, {"name": "Gas lines", "code": "gas"})
    client.post(page, {"name": "Gas lines", "code": "gas"})
    client.post(reverse("admin:technicians_skill_delete", args=[skill.pk]), {"post": "yes"})
    assert not Skill.objects.exists()
    rows = Event.objects.filter(subject_type="skill", subject_id=skill.pk, actor_label="Ada").order_by("pk")
    assert [(row.kind, row.data) for row in rows] == [
        ("skill.added", {"name": "Gas"}),
        ("skill.changed", {"name": "Gas lines", "fields": ["name"]}),
        ("skill.removed", {"name": "Gas lines"}),
    ]


def test_skills_deleted_together_are_each_in_the_event_log(phoenix):
    ids = [make.skill(phoenix, code).pk for code in ("gas", "oil")]
    client = signed_in(make.admin(phoenix))
    chosen = {"action": "delete_selected", "_selected_action": ids, "post": "yes"}
    client.post(reverse("admin:technicians_skill_changelist"), chosen)
    assert not Skill.objects.exists()
    removed = Event.objects.filter(kind="skill.removed").values_list("subject_id", flat=True)
    assert set(removed) == set(ids)
