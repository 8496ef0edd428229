"""Who is near a place, who of them may be asked, and why the others may not."""

from datetime import UTC, datetime, time

import pytest

from dispatch.core import clock
from dispatch.technicians import services
from dispatch.technicians.models import Technician
from dispatch.technicians.services import set_shifts
from tests.support import factories as make
from tests.support.factories import MESA, PHOENIX, SCOTTSDALE, TEMPE, TUCSON, Place

pytestmark = pytest.mark.django_db

EVERY_DAY = range(7)


@pytest.fixture
def phoenix():
    return make.organization("Desert Air", distance_unit="km")


def near(organization, at=PHOENIX, radius_m=50_000, skills=(), limit=50):
    return services.find_nearby(
        organization, at.lat, at.lng, radius_m=radius_m, skill_ids=[skill.pk for skill in skills], limit=limit
    )


def told(organization, **search):
    """Name → (verdict, reason) of everyone considered."""
    return {one.name: (one.verdict, one.reason) for one in near(organization, **search).considered}


def at_moment(year, month, day, hour, minute=0):
    """Moves the clock to this moment (UTC)."""
    clock.travel((datetime(year, month, day, hour, minute, tzinfo=UTC) - clock.now()).total_seconds())


def test_the_nearest_comes_first_with_the_distance_in_the_organizations_unit(phoenix):
    for name, place in (("Far", MESA), ("Near", PHOENIX), ("Middle", TEMPE), ("Tucson", TUCSON)):
        make.technician(phoenix, name, at=place)
    found = near(phoenix)
    assert [(one.name, one.verdict) for one in found.considered] == [
        ("Near", "in"),
        ("Middle", "in"),
        ("Far", "in"),
    ]
    assert [one.reason for one in found.considered] == ["0.0 km", "13 km", "23 km"]
    assert found.rest == {}
    phoenix.distance_unit = "mi"
    assert told(phoenix)["Middle"] == ("in", "7.9 mi")


def test_another_organizations_technicians_are_never_near(phoenix):
    make.technician(make.organization("Elsewhere"), "Stranger")
    assert near(phoenix).considered == []


def test_each_reason_for_ineligibility_is_reported(phoenix):
    gas, roof = make.skill(phoenix, "gas"), make.skill(phoenix, "roof")
    both = (gas, roof)
    make.technician(phoenix, "Fit", skills=both)
    make.technician(phoenix, "Unskilled", skills=(roof,))
    make.technician(phoenix, "Homebody", at=MESA, skills=both, radius_m=20_000)
    make.technician(phoenix, "Off duty", skills=both, on_duty=False)
    make.technician(phoenix, "Full", skills=both, open_jobs=2, max_open_jobs=2)
    make.technician(phoenix, "Gone", skills=both, is_active=False)
    busy = make.technician(phoenix, "Ringing", skills=both)
    services.begin_offer(busy.pk, 77)
    late = make.technician(phoenix, "Late shift", skills=both)
    set_shifts(late, [(day, time(14), time(22)) for day in EVERY_DAY])
    at_moment(2026, 11, 18, 16)  # Wednesday, 09:00 in Phoenix

    assert told(phoenix, skills=both) == {
        "Fit": ("in", "0.0 km, qualified"),
        "Ringing": ("deferred", "0.0 km, has another offer"),
        "Unskilled": ("out", "missing skill: Gas"),
        "Homebody": ("out", "2.8 km outside own radius"),
        "Off duty": ("out", "off duty"),
        "Full": ("out", "2 of 2 open jobs"),
        "Late shift": ("out", "off shift until 14:00"),
    }


def test_a_job_without_required_skills_asks_for_none(phoenix):
    make.technician(phoenix, "Anyone")
    assert told(phoenix) == {"Anyone": ("in", "0.0 km")}


def test_eligible_ones_come_before_nearer_ineligible_ones(phoenix):
    for n in range(4):
        make.technician(phoenix, f"Idle {n}", on_duty=False)
    busy = make.technician(phoenix, "Busy", at=MESA)
    services.begin_offer(busy.pk, 1)
    make.technician(phoenix, "Fit", at=TEMPE)
    make.technician(phoenix, "Skill-less", at=TEMPE, on_duty=False)
    found = near(phoenix, limit=4)
    assert [one.name for one in found.considered] == ["Fit", "Busy", "Idle 0", "Idle 1"]
    assert found.rest == {"off_duty": 3}


def test_more_fit_than_considered_are_counted_too(phoenix):
    for n in range(5):
        make.technician(phoenix, f"T{n}")
    make.technician(phoenix, "Out", on_duty=False)
    found = near(phoenix, limit=3)
    assert [one.name for one in found.considered] == ["T0", "T1", "T2"]
    assert found.rest == {"fit": 2, "off_duty": 1}


def test_ties_are_broken_consistently(phoenix):
    made = [make.technician(phoenix, f"Twin {n}").pk for n in range(6)]
    Technician.objects.filter(pk=made[0]).update(name="Twin 0, edited")  # moves the row in the table
    for _ in range(3):
        assert [one.technician_id for one in near(phoenix).considered] == made


def test_the_radius_is_exact(phoenix):
    edge = Place(PHOENIX.lat + 0.09, PHOENIX.lng, "")  # 10,007.6 m north
    make.technician(phoenix, "Edge", at=edge)
    assert near(phoenix, radius_m=10_007).considered == []
    assert near(phoenix, radius_m=10_008).considered[0].distance_m == 10_008


@pytest.mark.parametrize(
    ("here", "there", "metres"),
    [
        (Place(52.0, 179.95, ""), Place(52.0, -179.95, ""), 6_846),  # across the antimeridian
        (Place(89.99, 0.0, ""), Place(89.99, 180.0, ""), 2_224),  # across the pole
        (Place(-90.0, 0.0, ""), Place(-89.9, 77.0, ""), 11_119),
        (Place(0.0, 0.0, ""), Place(0.0, 0.0, ""), 0),
    ],
)
def test_search_works_at_the_antimeridian_and_poles(phoenix, here, there, metres):
    make.technician(phoenix, "Neighbour", at=there)
    (one,) = near(phoenix, at=here, radius_m=20_000).considered
    assert one.distance_m == pytest.approx(metres, abs=2)


def test_a_radius_of_hundreds_of_kilometers_finds_tucson_from_phoenix(phoenix):
    make.technician(phoenix, "Tucson", at=TUCSON)
    assert told(phoenix, radius_m=500_000) == {"Tucson": ("in", "171 km")}


def test_moving_is_seen_by_the_next_search(phoenix):
    from dispatch.technicians.services import move_technician

    one = make.technician(phoenix, "Mover", at=TUCSON)
    assert near(phoenix).considered == []
    move_technician(one.pk, SCOTTSDALE.lat, SCOTTSDALE.lng)
    assert near(phoenix).considered[0].name == "Mover"


class TestShifts:
    """Shifts are wall-clock times where the technician is."""

    @pytest.fixture
    def night(self, phoenix):
        one = make.technician(phoenix, "Night")
        set_shifts(one, [(day, time(22), time(6)) for day in (0, 4, 6)])  # Monday, Friday, Sunday nights
        return one

    @pytest.mark.parametrize(
        ("moment", "reason"),
        [
            ((2026, 11, 17, 4, 59), "off shift until 22:00"),  # Monday 21:59
            ((2026, 11, 17, 5, 0), None),  # Monday 22:00
            ((2026, 11, 17, 12, 59), None),  # Tuesday 05:59
            ((2026, 11, 17, 13, 0), "off shift until Fri 22:00"),  # Tuesday 06:00
            ((2026, 11, 23, 6, 0), None),  # Sunday 23:00
            ((2026, 11, 23, 8, 0), None),  # Monday 01:00, still Sunday's night
            ((2026, 11, 23, 13, 0), "off shift until 22:00"),  # Monday 06:00
        ],
    )
    def test_a_night_shift_belongs_to_the_evening_it_begins_on(self, phoenix, night, moment, reason):
        at_moment(*moment)
        assert told(phoenix)["Night"] == (("out", reason) if reason else ("in", "0.0 km"))

    def test_the_technicians_time_zone_counts_before_the_organizations(self, phoenix):
        for name, zone in (("Here", ""), ("Eastern", "America/New_York")):
            set_shifts(
                make.technician(phoenix, name, time_zone=zone), [(day, time(8), time(17)) for day in EVERY_DAY]
            )
        at_moment(2026, 11, 18, 14)  # 07:00 in Phoenix, 09:00 in New York
        assert told(phoenix) == {"Eastern": ("in", "0.0 km"), "Here": ("out", "off shift until 08:00")}

    def test_a_whole_day_and_no_shifts_at_all(self, phoenix):
        set_shifts(make.technician(phoenix, "All day"), [(2, time(0), time(0))])  # Wednesday 00:00–24:00
        make.technician(phoenix, "Whenever")
        at_moment(2026, 11, 19, 6, 59)  # Wednesday 23:59
        assert {name: verdict for name, (verdict, _) in told(phoenix).items()} == {
            "All day": "in",
            "Whenever": "in",
        }
        at_moment(2026, 11, 19, 7, 0)
        assert told(phoenix)["All day"] == ("out", "off shift until Wed 00:00")


class TestFitness:
    """The same judgement of one technician, made again at each offer."""

    def fitness(self, one, at=PHOENIX, radius_m=50_000, skills=(), **options):
        ids = [skill.pk for skill in skills]
        return services.check_fitness(one.pk, at.lat, at.lng, radius_m=radius_m, skill_ids=ids, **options)

    def test_it_agrees_with_the_search(self, phoenix):
        gas = make.skill(phoenix, "gas")
        one = make.technician(phoenix, "One", at=TEMPE, skills=(gas,))
        assert self.fitness(one, skills=(gas,)) == near(phoenix, skills=(gas,)).considered[0]

    def test_changes_since_the_search_are_detected(self, phoenix):
        one = make.technician(phoenix, "One")
        Technician.objects.filter(pk=one.pk).update(on_duty=False)
        assert self.fitness(one).reason == "off duty"
        Technician.objects.filter(pk=one.pk).update(is_active=False)
        assert (self.fitness(one).verdict, self.fitness(one).reason) == ("out", "no longer active")

    def test_distance_beyond_the_radius_is_reported(self, phoenix):
        one = make.technician(phoenix, "Far", at=TUCSON)
        assert self.fitness(one, radius_m=100_000).reason == "71 km outside the radius"

    def test_search_without_technicians_is_empty(self, phoenix):
        one = make.technician(phoenix, "Nobody")
        services_id = one.pk
        one.delete()
        with pytest.raises(Technician.DoesNotExist):
            services.check_fitness(services_id, 0, 0, radius_m=1, skill_ids=[])
