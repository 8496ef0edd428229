"""Every error of the API is a problem that a program can read."""

import base64
from urllib.parse import quote

import pytest
from django.test import Client, RequestFactory
from django.urls import path
from rest_framework import serializers
from rest_framework.views import APIView

from accounts.models import ApiKey
from accounts.permissions import ANYONE
from dispatch.core import clock, problems
from dispatch.core.events import Actor
from tests import factories as make
from tests.api.client import Api

pytestmark = pytest.mark.django_db


class InnerSerializer(serializers.Serializer):
    lat = serializers.FloatField()


class OuterSerializer(serializers.Serializer):
    place = InnerSerializer()
    stops = InnerSerializer(many=True)

    def validate(self, attrs):
        raise serializers.ValidationError("Both cannot be.")


class BrokenView(APIView):
    required = {"get": ANYONE, "post": ANYONE, "delete": ANYONE}

    def get(self, request):
        raise RuntimeError("the password is swordfish")

    def post(self, request):
        OuterSerializer(data=request.data).is_valid(raise_exception=True)

    def delete(self, request):
        raise problems.Conflict(
            by=Actor("user", 7, "Ana"),
            did="assigned the job to Unit 12",
            at=clock.now().replace(year=2026),
            version=3,
        )


class UndescribedView(APIView):
    def get(self, request):
        raise AssertionError("never reached")


class Routes:
    urlpatterns = [
        path("api/v1/broken/", BrokenView.as_view()),
        path("api/v1/undescribed/", UndescribedView.as_view()),
    ]
    handler500 = staticmethod(problems.failed)


@pytest.fixture
def broken(settings):
    settings.ROOT_URLCONF = Routes
    return Api(key=make.api_key(make.organization()))


def is_problem(answer, status: int, code: str) -> dict:
    assert answer.status_code == status, answer.content
    assert answer["Content-Type"] == "application/problem+json"
    body = answer.json()
    assert set(body) >= {"type", "title", "status", "detail", "errors"}
    assert (body["status"], body["type"]) == (status, f"urn:dispatch:problem:{code}")
    assert all(set(error) == {"field", "code", "detail"} for error in body["errors"])
    return body


@pytest.fixture
def api():
    return Api(user=make.admin(make.organization()))


def test_nobody_is_asked_who_they_are():
    answer = Api().get("me/")
    is_problem(answer, 401, "not_authenticated")
    assert answer["WWW-Authenticate"] == "Bearer"


def test_an_unknown_address_says_so_also_without_its_slash(api):
    is_problem(api.get("nothing/"), 404, "not_found")
    is_problem(Api().get("/api/v7/"), 404, "not_found")
    assert "/api/v1/me/" in is_problem(api.get("me"), 404, "not_found")["detail"]
    is_problem(api.post("me"), 404, "not_found")


def test_a_row_that_is_not_there(api):
    is_problem(api.get("members/999999/"), 404, "not_found")
    is_problem(api.get(f"members/{10**30}/"), 404, "not_found")
    is_problem(api.get("members/ana/"), 404, "not_found")
    me = api.get("members/").json()["results"][0]["id"]
    for same in (f"{me}%0A", f"%20{me}", f"+{me}", f"{me}_0"):  # which Python would read as numbers
        is_problem(api.get(f"members/{same}/"), 404, "not_found")


def test_a_method_that_is_not_there(api):
    answer = api.delete("me/")
    is_problem(answer, 405, "method_not_allowed")
    assert "GET" in answer["Allow"]
    is_problem(api.send("OPTIONS", "me/"), 405, "method_not_allowed")
    is_problem(api.send("PUT", "organization/"), 405, "method_not_allowed")


@pytest.mark.parametrize("text", ["{", '{"on_duty": NaN}', "[" * 100_000])
def test_a_body_that_cannot_be_read(api, text):
    is_problem(api.post("duty/", text), 400, "parse_error")


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ('{"on_duty": "\\u0000"}', "on_duty"),
        ('{"a": {"b": [1, "\\ud800"]}}', "a.b.1"),
        ('{"a": {"b\\u0000": 1}}', "a"),
        ('"\\u0000"', None),
    ],
)
def test_a_text_that_cannot_be_stored_is_named(api, text, field):
    told = is_problem(api.post("duty/", text), 400, "validation_error")
    assert [(one["field"], one["code"]) for one in told["errors"]] == [(field, "unstorable")]


def test_a_body_of_another_kind(api):
    answer = api.client.post("/api/v1/duty/", "on_duty=1", content_type="application/x-www-form-urlencoded")
    is_problem(answer, 415, "unsupported_media_type")


def test_an_answer_of_another_kind(api):
    is_problem(api.get("me/", Accept="text/csv"), 406, "not_acceptable")


def test_a_body_that_is_too_large(api, settings):
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 100
    is_problem(api.post("duty/", {"on_duty": "x" * 200}), 413, "too_large")


def test_what_is_not_valid_is_named_by_its_path(broken):
    body = is_problem(
        broken.post("broken/", {"place": {}, "stops": [{"lat": 1}, {"lat": "x"}]}), 400, "validation_error"
    )
    assert {(error["field"], error["code"]) for error in body["errors"]} == {
        ("place.lat", "required"),
        ("stops.1.lat", "invalid"),
    }
    assert body["detail"].startswith("place.lat: ")


def test_an_error_of_no_field_has_none(broken):
    body = is_problem(broken.post("broken/", {"place": {"lat": 1}, "stops": []}), 400, "validation_error")
    assert body["errors"] == [{"field": None, "code": "invalid", "detail": "Both cannot be."}]


def test_a_failure_tells_nothing_of_the_inside(broken):
    answer = broken.get("broken/")
    is_problem(answer, 500, "error")
    assert b"swordfish" not in answer.content
    assert b"RuntimeError" not in answer.content


def test_a_failure_tells_nothing_with_debug_on_either(broken, settings):
    settings.DEBUG = True
    answer = broken.get("broken/")
    is_problem(answer, 500, "error")
    assert b"swordfish" not in answer.content


def test_a_conflict_says_who_did_what_when(broken):
    body = is_problem(broken.delete("broken/"), 409, "conflict")
    assert body["detail"].startswith("Ana assigned the job to Unit 12 at 2026-")
    assert body["conflict"]["by"] == {"type": "user", "id": 7, "label": "Ana"}
    assert body["conflict"]["did"] == "assigned the job to Unit 12"
    assert body["conflict"]["version"] == 3
    assert body["conflict"]["at"]


def test_a_view_that_does_not_say_what_it_requires_is_closed(broken):
    is_problem(broken.get("undescribed/"), 403, "permission_denied")
    assert ApiKey.objects.get().scopes == list(ApiKey.Scope.values)


def test_pages_keep_their_own_errors():
    request = RequestFactory().get("/nothing")
    assert problems.not_found(request, Exception()).status_code == 404
    assert "problem" not in problems.not_found(request, Exception())["Content-Type"]
    assert problems.failed(RequestFactory().get("/api/v1/x/"))["Content-Type"] == problems.CONTENT_TYPE
    assert problems.forbidden(RequestFactory().get("/api/v1/x/"), Exception()).status_code == 403


def test_a_program_that_posts_to_a_wrong_address_is_told_so(api):
    client = Client(enforce_csrf_checks=True)
    body = is_problem(client.post("/api/v1/submissions", "{}", "application/json"), 404, "not_found")
    assert body["detail"].endswith("Did you mean /api/v1/submissions/ ?")
    is_problem(client.delete("/api/v1/nonsense/"), 404, "not_found")


@pytest.mark.parametrize("position", ["\0", "abc", "-1", "1.5", "\u0663", "9" * 18, "9" * 40])
def test_a_cursor_that_nobody_was_given_is_refused_or_at_the_end(api, position):
    cursor = base64.b64encode(f"p={quote(position)}".encode()).decode()
    answer = api.get(f"jobs/?cursor={quote(cursor)}")
    if position == "9" * 18:
        assert answer.status_code == 200
    else:
        assert is_problem(answer, 400, "validation_error")["errors"][0]["field"] == "cursor"
