"""An organization that reaches a limit is refused with the limit and what to do; others are not affected."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from accounts import limits
from accounts.models import ApiKey, Organization, OrganizationLimits
from dispatch.core import clock
from dispatch.core.models import Event
from dispatch.leads.models import Campaign, Lead
from dispatch.outbox.models import Message
from dispatch.outbox.services.intake import NewMessage, accept_of_several
from dispatch.schedules.models import Schedule
from tests.api.client import Api
from tests.api.test_throttling import both  # noqa: F401
from tests.support import factories as make

pytestmark = pytest.mark.django_db
URL = "https://erp.example/hook"


@pytest.fixture
def organization() -> Organization:
    return make.organization()


def limit(organization: Organization, **values: int) -> None:
    OrganizationLimits.objects.update_or_create(organization=organization, defaults=values)
    limits.reset()


def schedule(name: str) -> dict[str, Any]:
    return {"name": name, "kind": "message", "payload": message(), "every": 1, "unit": "hour"}


def campaign_of(organization: Organization) -> Campaign:
    return Campaign.objects.create(
        organization=organization, code="spring", name="Spring", pool=make.pool(organization), script="Hello"
    )


def lead(number: int = 0) -> dict[str, Any]:
    return {"campaign": "spring", "phone": make.phone(), "due_at": "2030-01-01T10:00:00Z"}


def message() -> dict[str, Any]:
    return {"target_url": URL, "type": "test", "payload": {}}


@pytest.mark.parametrize(
    ("name", "path", "body"),
    [("schedules", "schedules/", schedule), ("leads", "leads/", lead), ("messages", "messages/", message)],
    ids=["schedules", "leads", "messages"],
)
def test_the_third_row_is_refused_with_the_limit(name: str, path: str, body: Any, organization: Any) -> None:
    other = make.organization()
    for of in (organization, other):
        campaign_of(of)
    limit(organization, **{name: 2})
    ours, theirs = (Api(key=make.api_key(of)) for of in (organization, other))

    def post(api: Api) -> Any:
        return api.post(path, body("hourly") if name == "schedules" else body())

    made = [post(ours) for _ in range(2)]
    assert [answer.status_code for answer in made] == [made[0].status_code] * 2
    assert made[0].status_code in (201, 202), made[0].content
    refused = post(ours)
    assert refused.status_code == 422, refused.content
    problem = refused.json()
    assert problem["type"] == "urn:dispatch:problem:limit_reached"
    assert problem["limit"] == {"name": name, "limit": 2, "used": 2}
    assert f"at most 2 {limits.LABELS[name]}" in problem["detail"]
    assert "ask the operator" in problem["detail"]
    assert all(post(theirs).status_code == made[0].status_code for _ in range(3))


def test_ended_rows_make_headroom(organization: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "RECOUNT_S", 0.0)
    monkeypatch.setattr(limits, "RECOUNT_SHARE", 0)
    limit(organization, schedules=1)
    api = Api(key=make.api_key(organization))
    first = api.post("schedules/", schedule("one"))
    assert api.post("schedules/", schedule("two")).status_code == 422
    api.delete(f"schedules/{first.json()['id']}/")
    assert api.post("schedules/", schedule("two")).status_code == 201
    assert Schedule.objects.of(organization).filter(status="active").count() == 1


def test_an_import_is_refused_as_a_whole(organization: Any) -> None:
    limit(organization, schedules=2)
    api = Api(key=make.api_key(organization))
    rows = [schedule(f"row {number}") for number in range(3)]
    assert api.post("schedule-imports/", {"schedules": rows}).status_code == 422
    assert api.post("schedule-imports/", {"schedules": rows[:2]}).status_code == 202


def test_messages_about_events_are_never_refused(organization: Any) -> None:
    limit(organization, messages=1)
    news = [NewMessage(type="job.created", payload="{}", url=URL) for _ in range(3)]
    accept_of_several({organization.pk: news})
    assert Message.objects.of(organization).count() == 3


def test_the_upload_page_shows_the_limit(organization: Any) -> None:
    from django.core.files.uploadedfile import SimpleUploadedFile

    campaign_of(organization)
    limit(organization, leads=1)
    browser = make.browser(make.dispatcher(organization))
    file = SimpleUploadedFile("leads.csv", f"phone\n{make.phone()}\n{make.phone()}\n".encode())
    answer = browser.post("/leads/upload/", {"campaign": "spring", "file": file})
    assert answer.status_code == 422
    assert "at most 1 leads" in answer.content.decode()
    assert not Lead.objects.of(organization).exists()


def test_keys_are_counted_exactly(organization: Any) -> None:
    limit(organization, api_keys=2)
    api = Api(user=make.admin(organization))
    new = {"name": "ERP", "scopes": ["read"]}
    answers = [api.post("api-keys/", new) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [201, 201, 422]
    assert answers[2].json()["limit"]["name"] == "api_keys"
    ApiKey.objects.of(organization).update(expires_at=clock.now())
    assert api.post("api-keys/", new).status_code == 201


@pytest.mark.usefixtures("both")
def test_all_keys_of_an_organization_share_its_rate(organization: Any) -> None:
    limit(organization, requests_per_minute=3)
    first, second = (Api(key=make.api_key(organization)) for _ in range(2))
    other = Api(key=make.api_key(make.organization()))
    assert [api.get("me/").status_code for api in (first, second, first)] == [200, 200, 200]
    refused = second.get("me/")
    assert refused.status_code == 429
    assert 0 < int(refused["Retry-After"]) <= 20
    assert "at most 3 API requests per minute" in refused.json()["detail"]
    assert refused["RateLimit-Remaining"] != "0", "its own bucket is not empty"
    assert other.get("me/").status_code == 200
    clock.travel(20)
    assert second.get("me/").status_code == 200


def test_sockets_beyond_the_limit_are_not_admitted(organization: Any, settings: Any) -> None:
    limit(organization, sockets=2)
    assert [limits.admit_socket(organization.pk, name) for name in ("a", "b", "c")] == [True, True, False]
    assert limits.admit_socket(organization.pk, "a"), "an open socket is renewed"
    limits.release_socket(organization.pk, "b")
    assert limits.admit_socket(organization.pk, "c")
    assert limits.admit_socket(make.organization().pk, "d")
    clock.travel(settings.SOCKET_RECHECK_S * limits.MISSED_CHECKS + 1)
    assert limits.admit_socket(organization.pk, "e"), "sockets of dead processes expire"


def test_limits_cost_no_query_on_the_hot_path(organization: Any) -> None:
    campaign_of(organization)
    api = Api(key=make.api_key(organization))
    api.post("leads/", lead())
    with CaptureQueriesContext(connection) as queries:
        api.post("leads/", lead())
    assert not [
        query for query in queries if "organizationlimits" in query["sql"] or "count(" in query["sql"].lower()
    ]


def test_only_superusers_edit_limits(organization: Any) -> None:
    limit(organization, sockets=7)
    row = OrganizationLimits.objects.get()
    page = reverse("admin:accounts_organizationlimits_change", args=[row.pk])
    superuser = make.user("Root", is_superuser=True)
    admin = make.browser(make.admin(organization))
    assert "7" in admin.get(page).content.decode()
    assert admin.post(page, {"sockets": 9}).status_code == 403
    assert make.browser(make.admin(make.organization())).get(page).status_code != 200
    saved = make.browser(superuser).post(page, {"sockets": "9", "organization": organization.pk})
    assert saved.status_code == 302, saved.content
    row.refresh_from_db()
    assert (row.sockets, row.leads) == (9, None)
    assert limits.limits_of(organization.pk).sockets == 9, "the process that saved it uses it at once"
    assert Event.objects.get(kind="limits.changed").data["sockets"] == 9
    assert "Empty: 500. 0: no limit." in make.browser(superuser).get(page).content.decode()
