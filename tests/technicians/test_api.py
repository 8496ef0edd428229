"""Technicians over the API: who may do what, and what the answers say."""

import pytest
from rest_framework.test import APIClient

from dispatch.core.models import Event
from dispatch.technicians.models import Technician
from tests.support import factories as make

pytestmark = pytest.mark.django_db
URL = "/api/v1/technicians/"


@pytest.fixture
def phoenix():
    return make.organization("Desert Air")


def by_key(organization, *scopes):
    client = APIClient()
    client.credentials(HTTP_AUTHORIZATION=f"Bearer {make.api_key(organization, *scopes)}")
    return client


def signed_in(person):
    client = APIClient()
    client.force_login(person, backend="django.contrib.auth.backends.ModelBackend")
    return client


def body(**changes):
    return {"name": "Ana Ruiz", "phone": "(602) 255-0199", "lat": 33.45, "lng": -112.07, **changes}


def test_a_technician_is_created_with_skills_and_shifts(phoenix):
    make.skill(phoenix, "gas")
    shifts = [{"weekday": 0, "starts": "08:00", "ends": "17:00"}]
    answer = by_key(phoenix, "manage", "read").post(URL, body(skills=["gas"], shifts=shifts))
    assert answer.status_code == 201, answer.json()
    made = Technician.objects.get(pk=answer.json()["id"])
    assert (made.phone.as_e164, made.organization) == ("+16022550199", phoenix)
    assert (len(made.skill_ids), made.hours) == (1, ((28_800, 61_200),))
    assert answer.json()["shifts"] == [{"weekday": 0, "starts": "08:00:00", "ends": "17:00:00"}]


def test_shifts_are_replaced_as_a_whole_and_left_alone_when_not_named(phoenix):
    client = by_key(phoenix, "manage", "read")
    one = client.post(URL, body(shifts=[{"weekday": 0, "starts": "08:00", "ends": "17:00"}])).json()
    assert len(client.patch(f"{URL}{one['id']}/", {"name": "Ana"}).json()["shifts"]) == 1
    assert client.patch(f"{URL}{one['id']}/", {"shifts": []}).json()["shifts"] == []
    assert Technician.objects.get(pk=one["id"]).hours is None


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("phone", "12"),
        ("lat", 91),
        ("lat", "nan"),
        ("lng", True),
        ("lng", -180.5),
        ("time_zone", "Mars/Olympus"),
        ("skills", ["unheard-of"]),
        ("shifts", [{"weekday": 7, "starts": "08:00", "ends": "17:00"}]),
    ],
)
def test_invalid_fields_are_named(phoenix, field, value):
    answer = by_key(phoenix, "manage").post(URL, body(**{field: value}))
    assert answer.status_code == 400
    assert answer.json()["errors"][0]["field"].startswith(field)


def test_two_active_technicians_cannot_share_a_phone(phoenix):
    client = by_key(phoenix, "manage")
    assert client.post(URL, body()).status_code == 201
    assert client.post(URL, body(name="Twin")).status_code == 400


def test_a_dispatcher_sets_duty_but_edits_nothing(phoenix):
    one = make.technician(phoenix)
    client = signed_in(make.dispatcher(phoenix, "Dora"))
    assert client.post(f"{URL}{one.pk}/duty/", {"on_duty": False}).json()["on_duty"] is False
    assert Event.objects.get(kind="technician.duty_off").actor_label == "Dora"
    assert client.patch(f"{URL}{one.pk}/", {"name": "X"}).status_code == 403
    assert client.post(URL, body()).status_code == 403
    assert client.post(f"{URL}{one.pk}/position/", {"lat": 1, "lng": 1}).status_code == 403


def test_a_key_sets_duty_and_position_only_if_it_may_manage(phoenix):
    one = make.technician(phoenix)
    jobs_key, manage = by_key(phoenix, "read", "jobs:write", "submissions:write"), by_key(phoenix, "manage")
    for path, data in (("duty", {"on_duty": False}), ("position", {"lat": 33.5, "lng": -112.0})):
        assert jobs_key.post(f"{URL}{one.pk}/{path}/", data).status_code == 403
        assert manage.post(f"{URL}{one.pk}/{path}/", data).status_code == 200
    one.refresh_from_db()
    assert (one.on_duty, one.lat, one.lng) == (False, 33.5, -112.0)


def test_another_organizations_technicians_and_skills_do_not_exist(phoenix):
    stranger = make.technician(make.organization("Elsewhere"))
    foreign = make.skill(stranger.organization, "secret")
    client = by_key(phoenix)
    assert client.get(URL).json()["results"] == []
    for answer in (
        client.get(f"{URL}{stranger.pk}/"),
        client.patch(f"{URL}{stranger.pk}/", {"name": "Mine"}),
        client.post(f"{URL}{stranger.pk}/duty/", {"on_duty": False}),
        client.post(f"{URL}{stranger.pk}/position/", {"lat": 1, "lng": 1}),
        client.get(f"/api/v1/skills/{foreign.pk}/"),
    ):
        assert answer.status_code == 404
    assert client.post(URL, body(skills=["secret"])).status_code == 400
    stranger.refresh_from_db()
    assert stranger.on_duty


def test_the_list_is_filtered_by_duty_skill_and_name(phoenix):
    gas = make.skill(phoenix, "gas")
    make.technician(phoenix, "Ana", skills=(gas,))
    make.technician(phoenix, "Bo", on_duty=False)
    client = by_key(phoenix, "read")
    names = lambda query: [row["name"] for row in client.get(f"{URL}?{query}").json()["results"]]  # noqa: E731
    assert (names("on_duty=false"), names("skill=gas"), names("name=an")) == (["Bo"], ["Ana"], ["Ana"])


def test_a_list_of_many_takes_no_query_for_each(phoenix, django_assert_max_num_queries):
    gas = make.skill(phoenix, "gas")
    for _ in range(20):
        make.technician(phoenix, skills=(gas,))
    client = by_key(phoenix, "read")
    with django_assert_max_num_queries(9):
        assert len(client.get(URL).json()["results"]) == 20


def test_a_skill_is_made_and_its_code_is_unique_in_the_organization(phoenix):
    client = by_key(phoenix, "manage", "read")
    assert client.post("/api/v1/skills/", {"code": "gas", "name": "Gas"}).status_code == 201
    assert client.post("/api/v1/skills/", {"code": "gas", "name": "Gas 2"}).status_code == 400
    other = by_key(make.organization("Elsewhere"), "manage")
    assert other.post("/api/v1/skills/", {"code": "gas", "name": "Gas"}).status_code == 201
