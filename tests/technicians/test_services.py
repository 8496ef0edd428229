"""What the jobs slice tells technicians: being on an offer, and open jobs; and what signals keep in step."""

import threading
from contextlib import suppress
from datetime import time

import pytest
from django.db import DatabaseError, connection, transaction

from dispatch.core import clock
from dispatch.core.events import SYSTEM, Actor
from dispatch.core.models import Event
from dispatch.technicians import services
from dispatch.technicians.h3_cells import cell_of
from dispatch.technicians.models import Shift, Technician
from tests.support import factories as make
from tests.support.waiting import PATIENCE, wait_until

ANA = Actor("user", 7, "Ana")


@pytest.fixture
def one(db):
    return make.technician(make.organization(), "One")


def now_of(one):
    one.refresh_from_db()
    return one


def test_a_technician_is_on_one_offer_at_a_time(one):
    services.begin_offer(one.pk, 1)
    services.begin_offer(one.pk, 1)  # the same again is fine
    with pytest.raises(DatabaseError, match="another live offer"), transaction.atomic():
        services.begin_offer(one.pk, 2)
    assert now_of(one).live_offer_id == 1


def test_starting_an_offer_records_the_time(one):
    before = clock.now()
    services.begin_offer(one.pk, 1)
    assert before <= now_of(one).last_offered_at <= clock.now()


def test_a_late_end_of_an_old_offer_does_not_free_the_technician(one):
    services.begin_offer(one.pk, 1)
    assert services.end_offer(one.pk, 1)
    services.begin_offer(one.pk, 2)
    assert not services.end_offer(one.pk, 1)
    assert now_of(one).live_offer_id == 2


def test_open_jobs_are_counted_and_never_below_none(one):
    services.add_open_job(one.pk)
    services.add_open_job(one.pk)
    services.remove_open_job(one.pk)
    assert now_of(one).open_jobs == 1
    services.remove_open_job(one.pk)
    services.remove_open_job(one.pk)
    assert now_of(one).open_jobs == 0


def test_drift_is_repaired_and_reported(one):
    Technician.objects.filter(pk=one.pk).update(open_jobs=3, live_offer_id=9)
    with transaction.atomic():
        assert services.repair_technician(one.pk, 1, None)
        assert not services.repair_technician(one.pk, 1, None)
    assert (now_of(one).open_jobs, one.live_offer_id) == (1, None)


@pytest.mark.django_db(transaction=True)
def test_one_of_two_concurrent_offers_wins():
    one = make.technician(make.organization())
    won = []

    def offer(number):
        try:
            with suppress(DatabaseError):
                with transaction.atomic():
                    services.begin_offer(one.pk, number)
                won.append(number)
        finally:
            connection.close()

    threads = [threading.Thread(target=offer, args=(n,)) for n in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert won == [now_of(one).live_offer_id]


@pytest.mark.django_db(transaction=True)
def test_locked_fitness_check_sees_the_previous_change():
    one = make.technician(make.organization())
    seen = []

    def look():
        try:
            with transaction.atomic():
                place = make.PHOENIX
                seen.append(
                    services.check_fitness(
                        one.pk, place.lat, place.lng, radius_m=1000, skill_ids=[], lock=True
                    ).verdict
                )
        finally:
            connection.close()

    with transaction.atomic():
        Technician.objects.select_for_update(no_key=True).get(pk=one.pk)
        thread = threading.Thread(target=look)
        thread.start()
        wait_until(_somebody_waits_for_a_lock, message="nobody waits for the row")
        services.begin_offer(one.pk, 5)
    thread.join(PATIENCE)
    assert seen == ["deferred"]


def _somebody_waits_for_a_lock():
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_locks WHERE NOT granted")
        return cursor.fetchone()[0]


def test_a_change_of_duty_is_one_event_with_its_actor(one):
    assert services.set_duty(one.pk, False, actor=ANA)
    assert not services.set_duty(one.pk, False, actor=ANA)
    (event,) = Event.objects.filter(subject_type="technician", subject_id=one.pk)
    assert (event.kind, event.actor_label, event.actor_id) == ("technician.duty_off", "Ana", 7)
    services.change_technician(one.pk, {"on_duty": True, "name": "Uno"}, actor=ANA)
    assert Event.objects.filter(subject_id=one.pk, kind="technician.duty_on").count() == 1


def test_the_cell_follows_the_position(one):
    services.move_technician(one.pk, 40.7, -74.0)
    assert now_of(one).cell == cell_of(40.7, -74.0)
    services.change_technician(one.pk, {"lat": 41.9, "lng": -87.6}, actor=SYSTEM)
    assert now_of(one).cell == cell_of(41.9, -87.6)
    one.lat = 25.8
    one.save(update_fields=["lat"])
    assert now_of(one).cell == cell_of(25.8, -87.6)


def test_skill_ids_follow_the_skills_from_both_sides(one):
    gas, roof = make.skill(one.organization, "gas"), make.skill(one.organization, "roof")
    one.skills.add(roof, gas)
    assert now_of(one).skill_ids == sorted([gas.pk, roof.pk])
    gas.technicians.remove(one)
    assert now_of(one).skill_ids == [roof.pk]
    roof.technicians.clear()
    assert now_of(one).skill_ids == []
    gas.technicians.add(one)
    assert now_of(one).skill_ids == [gas.pk]
    gas.delete()
    assert now_of(one).skill_ids == []


def test_hours_follow_the_shifts(one):
    shift = Shift.objects.create(
        organization=one.organization, technician=one, weekday=1, starts=time(8), ends=time(9)
    )
    assert now_of(one).hours == ((86_400 + 28_800, 86_400 + 32_400),)
    shift.ends = time(10)
    shift.save()
    assert now_of(one).hours == ((86_400 + 28_800, 86_400 + 36_000),)
    shift.delete()
    assert now_of(one).hours is None
