"""Every error of the API is a machine-readable problem."""

import base64
from datetime import UTC, datetime
from urllib.parse import quote

import pytest
from django.db import OperationalError
from django.test import Client, RequestFactory
from django.urls import path
from rest_framework import serializers
from rest_framework.views import APIView

from accounts.auth.permissions import ANYONE
from accounts.models import ApiKey
from dispatch.core.api import problems
from dispatch.core.events import Actor
from dispatch.technicians.models import Skill
from tests.api.client import Api
from tests.support import factories as make

pytestmark = pytest.mark.django_db


class InnerSerializer(serializers.Serializer):
    lat = serializers.FloatField()


class OuterSerializer(serializers.Serializer):
    place = InnerSerializer()
    stops = InnerSerializer(many=True)

    def validate(self, attrs):
        raise serializers.ValidationError("Both cannot be.")


class BrokenView(APIView):
    required = {"get": ANYONE, "post": ANYONE, "delete": ANYONE, "put": ANYONE, "patch": ANYONE}

    def get(self, request):
        raise RuntimeError("the password is swordfish")

    def post(self, request):
        OuterSerializer(data=request.data).is_valid(raise_exception=True)

    def delete(self, request):
        raise problems.Conflict(
            by=Actor("user", 7, "Ana"),
            did="assigned the job to Unit 12",
            at=datetime(2026, 3, 10, tzinfo=UTC),
            version=3,
        )

    def put(self, request):
        make.skill(make.organization(), "kept")
        raise OperationalError("server closed the connection unexpectedly")  # when the response is read

    def patch(self, request):
        make.skill(make.organization(), "kept")
        raise RuntimeError("after the commit")


class UndescribedView(APIView):
    def get(self, request):
        raise AssertionError("never reached")


class Routes:
    urlpatterns = [
        path("api/v1/broken/", BrokenView.as_view()),
        path("api/v1/undescribed/", UndescribedView.as_view()),
    ]
    handler500 = staticmethod(problems.server_error)


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


def test_anonymous_request_is_401():
    answer = Api().get("me/")
    is_problem(answer, 401, "not_authenticated")
    assert answer["WWW-Authenticate"] == "Bearer"


def test_unknown_url_is_404_with_or_without_its_slash(api):
    is_problem(api.get("nothing/"), 404, "not_found")
    is_problem(Api().get("/api/v7/"), 404, "not_found")
    assert "/api/v1/me/" in is_problem(api.get("me"), 404, "not_found")["detail"]
    is_problem(api.post("me"), 404, "not_found")


def test_missing_row_is_404(api):
    is_problem(api.get("members/999999/"), 404, "not_found")
    is_problem(api.get(f"members/{10**30}/"), 404, "not_found")
    is_problem(api.get("members/ana/"), 404, "not_found")
    me = api.get("members/").json()["results"][0]["id"]
    for same in (f"{me}%0A", f"%20{me}", f"+{me}", f"{me}_0"):  # which Python would read as numbers
        is_problem(api.get(f"members/{same}/"), 404, "not_found")


def test_unknown_method_is_405(api):
    answer = api.delete("me/")
    is_problem(answer, 405, "method_not_allowed")
    assert "GET" in answer["Allow"]
    is_problem(api.send("OPTIONS", "me/"), 405, "method_not_allowed")
    is_problem(api.send("PUT", "organization/"), 405, "method_not_allowed")


@pytest.mark.parametrize("text", ["{", '{"on_duty": NaN}', "[" * 50_000])
def test_a_body_that_cannot_be_read(api, text):
    is_problem(api.post("duty/", text), 400, "parse_error")


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ('{"on_duty": "\\u0000"}', "on_duty"),
        ('{"a": {"b": [1, "\\ud800"]}}', "a.b.1"),
        ('{"a": {"b\\u0000": 1}}', "a"),
        ('"\\u0000"', None),
        ('{"on_duty": 1e999}', "on_duty"),
        ('{"a": {"b": [1, -1e999]}}', "a.b.1"),
        ("1e999", None),
    ],
)
def test_a_value_that_cannot_be_stored_is_named(api, text, field):
    told = is_problem(api.post("duty/", text), 400, "validation_error")
    assert [(one["field"], one["code"]) for one in told["errors"]] == [(field, "unstorable")]


def test_a_body_of_another_kind(api):
    answer = api.client.post("/api/v1/duty/", "on_duty=1", content_type="application/x-www-form-urlencoded")
    is_problem(answer, 415, "unsupported_media_type")


def test_unacceptable_response_type(api):
    is_problem(api.get("me/", Accept="text/csv"), 406, "not_acceptable")


def test_a_body_that_is_too_large(api, settings):
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 100
    is_problem(api.post("duty/", {"on_duty": "x" * 200}), 413, "too_large")


def test_invalid_values_are_named_by_their_path(broken):
    body = is_problem(
        broken.post("broken/", {"place": {}, "stops": [{"lat": 1}, {"lat": "x"}]}), 400, "validation_error"
    )
    assert {(error["field"], error["code"]) for error in body["errors"]} == {
        ("place.lat", "required"),
        ("stops.1.lat", "invalid"),
    }
    assert body["detail"].startswith("place.lat: ")


def test_error_without_a_field_names_none(broken):
    body = is_problem(broken.post("broken/", {"place": {"lat": 1}, "stops": []}), 400, "validation_error")
    assert body["errors"] == [{"field": None, "code": "invalid", "detail": "Both cannot be."}]


def test_server_error_reveals_no_internals(broken):
    answer = broken.get("broken/")
    is_problem(answer, 500, "error")
    assert b"swordfish" not in answer.content
    assert b"RuntimeError" not in answer.content


def test_server_error_reveals_no_internals_with_debug(broken, settings):
    settings.DEBUG = True
    answer = broken.get("broken/")
    is_problem(answer, 500, "error")
    assert b"swordfish" not in answer.content


@pytest.mark.parametrize(("method", "status", "code"), [("PUT", 503, "unavailable"), ("PATCH", 500, "error")])
def test_failure_after_a_commit_does_not_say_that_nothing_was_saved(broken, method, status, code):
    detail = is_problem(broken.send(method, "broken/"), status, code)["detail"]
    assert Skill.objects.filter(code="kept").exists()
    assert "may or may not have been saved" in detail


def test_only_a_request_that_was_not_begun_says_that_nothing_was_saved():
    api, page = RequestFactory().post("/api/v1/x/"), RequestFactory().post("/board/")
    for request, in_doubt in (
        (api, "may or may not have been saved"),
        (page, "check whether your change was saved"),
    ):
        try:
            raise OperationalError("server closed the connection unexpectedly")
        except OperationalError:
            begun = problems.server_error(request)
        refused = problems.unavailable(request.path, problems.Busy)
        assert (begun.status_code, refused.status_code) == (503, 503)
        assert (begun["Retry-After"], refused["Retry-After"]) == ("5", "5")
        assert in_doubt in begun.content.decode()
        assert "Nothing was saved" not in begun.content.decode()
        assert "Nothing was saved" in refused.content.decode()


@pytest.mark.parametrize("path", ["/api/v1/x/", "/board/"])
@pytest.mark.parametrize(("error", "status"), [(OperationalError("server closed"), 503), (KeyError("x"), 500)])
def test_a_request_that_only_reads_does_not_say_that_a_change_may_have_been_saved(path, error, status):
    try:
        raise error
    except Exception:
        answer = problems.server_error(RequestFactory().get(path))
    told = answer.content.decode()
    assert answer.status_code == status
    assert "saved" not in told
    assert "Try again" in told or "It changed nothing" in told


def test_a_read_that_fails_says_so_in_a_view(broken):
    detail = is_problem(broken.get("broken/"), 500, "error")["detail"]
    assert detail == "The request failed and was logged. It changed nothing."


def test_a_conflict_says_who_did_what_when(broken):
    body = is_problem(broken.delete("broken/"), 409, "conflict")
    assert body["detail"].startswith("Ana assigned the job to Unit 12 at 2026-")
    assert body["conflict"]["by"] == {"type": "user", "id": 7, "label": "Ana"}
    assert body["conflict"]["did"] == "assigned the job to Unit 12"
    assert body["conflict"]["version"] == 3
    assert body["conflict"]["at"]


def test_view_without_requirements_is_denied(broken):
    is_problem(broken.get("undescribed/"), 403, "permission_denied")
    assert ApiKey.objects.get().scopes == list(ApiKey.Scope.values)


def test_pages_keep_their_own_errors():
    request = RequestFactory().get("/nothing")
    assert problems.not_found(request, Exception()).status_code == 404
    assert "problem" not in problems.not_found(request, Exception())["Content-Type"]
    assert problems.server_error(RequestFactory().get("/api/v1/x/"))["Content-Type"] == problems.CONTENT_TYPE
    assert problems.forbidden(RequestFactory().get("/api/v1/x/"), Exception()).status_code == 403


def test_post_to_a_wrong_url_is_404(api):
    client = Client(enforce_csrf_checks=True)
    body = is_problem(client.post("/api/v1/submissions", "{}", "application/json"), 404, "not_found")
    assert body["detail"].endswith("Did you mean /api/v1/submissions/ ?")
    is_problem(client.delete("/api/v1/nonsense/"), 404, "not_found")


@pytest.mark.parametrize("position", ["\0", "abc", "-1", "1.5", "\u0663", "9" * 18, "9" * 40])
def test_forged_cursor_is_rejected_or_at_the_end(api, position):
    cursor = base64.b64encode(f"p={quote(position)}".encode()).decode()
    answer = api.get(f"jobs/?cursor={quote(cursor)}")
    if position == "9" * 18:
        assert answer.status_code == 200
    else:
        assert is_problem(answer, 400, "validation_error")["errors"][0]["field"] == "cursor"
