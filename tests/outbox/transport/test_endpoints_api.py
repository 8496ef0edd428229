"""Endpoints over the API: create, change, rotate, pause, test, and their health."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from dispatch.capacity.models import DispatchPool
from dispatch.core import clock
from dispatch.core.http import webhook_signing as signing
from dispatch.core.models import Event, RememberedAnswer
from dispatch.outbox.models import Endpoint, Message, Target
from tests.api.client import Api
from tests.support import factories

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def organization() -> Any:
    return factories.organization("Copper State HVAC")


@pytest.fixture
def api(organization: Any) -> Api:
    return Api(key=factories.api_key(organization))


def add(api: Api, name: str = "ERP", **fields: Any) -> dict[str, Any]:
    answer = api.post("endpoints/", {"name": name, "url": "https://erp.example/hook", **fields})
    assert answer.status_code == 201, answer.content
    return answer.json()


def kinds(endpoint: int) -> list[str]:
    found = Event.objects.filter(subject_type="endpoint", subject_id=endpoint).order_by("id")
    return [kind.partition(".")[2] for kind in found.values_list("kind", flat=True)]


def fields_refused(answer: Any) -> list[str]:
    assert answer.status_code == 400, answer.content
    return [error["field"] for error in answer.json()["errors"]]


def test_an_endpoint_is_added_and_its_secret_shown_once(api: Api, organization: Any) -> None:
    made = add(api, event_types=["job.*", "lead.finished"], headers={"Authorization": "Bearer 1"})
    signing.check_secret(made["secret"])
    assert made["pool"] == "DISPATCH-POOL", "the organization's default, made when it is first needed"
    assert (made["state"], made["header_names"]) == ("healthy", ["Authorization"])
    seen = api.get(f"endpoints/{made['id']}/")
    assert "secret" not in seen.json()
    assert "headers" not in seen.json()
    assert made["secret"] not in api.get("endpoints/").content.decode()
    row = Endpoint.objects.get()
    assert (row.secret, row.headers, row.organization) == (
        made["secret"],
        {"Authorization": "Bearer 1"},
        organization,
    )
    assert kinds(row.pk) == ["added"]


def test_secrets_and_headers_are_encrypted_in_the_table(api: Api) -> None:
    from django.db import connection

    made = add(api, headers={"Authorization": "Bearer open sesame"})
    with connection.cursor() as cursor:
        cursor.execute("SELECT secret || headers FROM outbox_endpoint")
        (stored,) = cursor.fetchone()
    assert made["secret"] not in stored
    assert "open sesame" not in stored


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("url", "ftp://erp.example/"),
        ("url", "https://user:secret@erp.example/"),
        ("url", "http://169.254.169.254/latest/meta-data/"),
        ("url", "http://2130706433/"),
        ("url", "http://10.0.0.1/"),
        ("url", "http://erp.example:22/"),
        ("event_types", ["job.assigned.now"]),
        ("event_types", ["*.assigned"]),
        ("event_types", ["JOB.*"]),
        ("headers", {"Host": "other.example"}),
        ("headers", {"webhook-id": "1"}),
        ("headers", {"Dispatch-Type": "1"}),
        ("headers", {"X-A": "b\r\nX-C: d"}),
        ("headers", {f"X-{n}": "b" for n in range(21)}),
        ("headers", {"X-Key": "1", "x-key": "2"}),
        ("timeout_s", 0),
        ("timeout_s", 31),
        ("retry_schedule_s", [-1]),
        ("retry_schedule_s", [10] * 51),
        ("retry_jitter", 1.5),
        ("permanent_codes", [200]),
        ("permanent_codes", [429]),
        ("pool", "no-such-pool"),
        ("mode", "SOMEHOW"),
        ("name", ""),
    ],
)
def test_invalid_settings_are_rejected_by_field(api: Api, field: str, value: Any) -> None:
    answer = api.post("endpoints/", {"name": "ERP", "url": "https://erp.example/hook", field: value})
    assert {name.partition(".")[0] for name in fields_refused(answer)} == {field}
    assert not Endpoint.objects.exists()


def test_header_name_in_two_cases_is_refused_by_name(api: Api) -> None:
    own = {"Accept": "text/html", "Authorization": "Bearer 1", "authorization": "Bearer 2"}
    answer = api.post("endpoints/", {"name": "ERP", "url": "https://erp.example/hook", "headers": own})
    assert answer.json()["errors"][0]["detail"] == (
        "The header authorization is set twice. Upper and lower case make no difference."
    )


def test_a_name_is_taken_once_in_an_organization(api: Api) -> None:
    add(api)
    answer = api.post("endpoints/", {"name": "ERP", "url": "https://other.example/"})
    assert answer.status_code == 400
    other = factories.organization()
    assert add(Api(key=factories.api_key(other)))["name"] == "ERP"


def test_pool_must_be_own_and_of_kind_messages(api: Api, organization: Any) -> None:
    foreign = factories.organization()
    factories.pool(organization, code="calls", kind="calls")
    factories.pool(foreign, code="theirs", kind="messages", is_default=False)
    factories.pool(organization, code="slow", kind="messages", is_default=False)
    for code in ("calls", "theirs"):
        assert fields_refused(api.post("endpoints/", {"name": code, "url": "https://a.example/", "pool": code}))
    assert add(api, pool="slow")["pool"] == "slow"
    assert not DispatchPool.objects.filter(code="DISPATCH-POOL").exists()


def test_changes_are_in_the_log_and_a_new_address_begins_healthy(api: Api) -> None:
    made = add(api)
    Target.objects.update(failures=7, failing_since=clock.now(), open_until=clock.now(), last_error="500")
    assert api.get(f"endpoints/{made['id']}/").json()["state"] == "probing"
    answer = api.patch(f"endpoints/{made['id']}/", {"timeout_s": 5, "name": "ERP"})
    assert (answer.status_code, answer.json()["timeout_s"], answer.json()["state"]) == (200, 5.0, "probing")
    answer = api.patch(f"endpoints/{made['id']}/", {"url": "https://new.example/"})
    assert answer.json()["state"] == "healthy"
    api.patch(f"endpoints/{made['id']}/", {"timeout_s": 5})
    assert kinds(made["id"]) == ["added", "changed", "changed", "circuit_closed"]
    told = Event.objects.filter(kind="endpoint.changed").order_by("id").values_list("data", flat=True)
    assert [data["fields"] for data in told] == [["timeout_s"], ["url"]]


def test_read_only_fields_cannot_be_set(api: Api) -> None:
    made = add(api, is_paused=True, disabled_reason="x")
    assert (made["is_paused"], made["disabled_reason"]) == (False, "")
    refused = api.post("endpoints/", {"name": "mine", "url": "https://erp.example.com/", "secret": "whsec_mine"})
    assert (refused.status_code, [one["field"] for one in refused.json()["errors"]]) == (400, ["secret"])


def test_the_secret_is_replaced_with_an_overlap_or_at_once(api: Api) -> None:
    made = add(api)
    answer = api.post(f"endpoints/{made['id']}/rotate_secret/", {})
    rotated = answer.json()
    assert answer["Cache-Control"] == "no-store"
    row = Endpoint.objects.get()
    assert (row.secret, row.previous_secret) == (rotated["secret"], made["secret"])
    assert row.previous_secret_until is not None
    assert (row.previous_secret_until - clock.now()).total_seconds() == pytest.approx(24 * 3600, abs=30)
    answer = api.post(f"endpoints/{made['id']}/rotate_secret/", {"overlap_s": 0})
    row.refresh_from_db()
    assert (row.previous_secret, row.previous_secret_until, answer.json()["previous_secret_until"]) == (
        "",
        None,
        None,
    )
    assert row.secret == answer.json()["secret"]
    assert api.post(f"endpoints/{made['id']}/rotate_secret/", {"overlap_s": -1}).status_code == 400
    assert kinds(made["id"]) == ["added", "secret_rotated", "secret_rotated"]
    assert not [data for data in Event.objects.values_list("data", flat=True) if "whsec_" in str(data)]


def test_a_second_rotation_keeps_the_secret_that_the_receiver_has(api: Api) -> None:
    made = add(api)
    rotated = [api.post(f"endpoints/{made['id']}/rotate_secret/", {}).json()["secret"] for _ in range(2)]
    row = Endpoint.objects.get()
    assert row.signing_secrets(clock.now()) == [rotated[1], rotated[0], made["secret"]]
    assert row.signing_secrets(clock.now() + timedelta(days=1, minutes=1)) == [rotated[1]]
    api.post(f"endpoints/{made['id']}/rotate_secret/", {"overlap_s": 0})
    row.refresh_from_db()
    assert row.signing_secrets(clock.now()) == [row.secret]


def test_a_repeated_rotation_answers_with_the_same_secret(api: Api) -> None:
    made = add(api)
    at = f"endpoints/{made['id']}/rotate_secret/"
    first, repeated = (api.post(at, {}, Idempotency_Key="k-1") for _ in range(2))
    assert first.json() == repeated.json()
    assert (repeated["Idempotency-Replayed"], repeated["Cache-Control"]) == ("true", "no-store")
    row = Endpoint.objects.get()
    assert row.signing_secrets(clock.now()) == [first.json()["secret"], made["secret"]]
    assert "whsec_" not in str(list(RememberedAnswer.objects.values_list("body", flat=True)))
    other = add(api, "CRM")
    assert api.post(f"endpoints/{other['id']}/rotate_secret/", {}, Idempotency_Key="k-1").json() != first.json()
    RememberedAnswer.objects.update(body='{"secret": "of a key that is gone", "previous_secret_until": null}')
    lost = api.post(at, {}, Idempotency_Key="k-1")
    assert (lost.status_code, lost.json()["errors"][0]["code"]) == (409, "secret_unreadable")


def test_paused_resumed_disabled_and_enabled(api: Api) -> None:
    made = add(api)
    at = f"endpoints/{made['id']}/"
    answer = api.post(f"{at}pause/", {"reason": "maintenance"})
    assert (answer.json()["state"], answer.json()["paused_reason"]) == ("paused", "maintenance")
    assert "maintenance" in api.get(f"{at}health/").json()["words"]
    assert api.post(f"{at}resume/").json()["state"] == "healthy"
    assert api.post(f"{at}disable/", {"reason": "moved away"}).json()["state"] == "disabled"
    assert "moved away" in api.get(f"{at}health/").json()["words"]
    assert api.post(f"{at}enable/").json()["state"] == "healthy"
    assert kinds(made["id"]) == ["added", "paused", "resumed", "disabled", "enabled"]


def test_health_counts_what_waits(api: Api) -> None:
    made, other = add(api), add(api, "CRM")
    for _ in range(3):
        assert api.post(f"endpoints/{made['id']}/test/").status_code == 202
    api.post(f"endpoints/{other['id']}/test/")
    Message.objects.filter(pk=Message.objects.filter(endpoint=made["id"]).earliest("id").pk).update(
        status="ERROR", mode="BLOCK_ON_ERROR"
    )
    seen = api.get(f"endpoints/{made['id']}/health/").json()
    assert (seen["state"], seen["pending"], seen["errors"], seen["in_flight"]) == ("healthy", 2, 1, 0)
    assert seen["oldest_due_at"] is not None
    Target.objects.filter(endpoint=made["id"]).update(
        failures=5, failing_since=clock.now(), last_error="The receiver answered 500.", open_until=None
    )
    seen = api.get(f"endpoints/{made['id']}/health/").json()
    assert (seen["state"], seen["failures"]) == ("failing", 5)
    assert seen["words"] == "The last 5 attempts failed: The receiver answered 500."


def test_only_endpoints_without_messages_can_be_deleted(api: Api) -> None:
    made, unused = add(api), add(api, "CRM")
    api.post(f"endpoints/{made['id']}/test/")
    answer = api.delete(f"endpoints/{made['id']}/")
    assert answer.status_code == 409
    assert "Disable it" in answer.json()["detail"]
    assert api.delete(f"endpoints/{unused['id']}/").status_code == 204
    assert [row.name for row in Endpoint.objects.all()] == ["ERP"]
    assert kinds(unused["id"]) == ["added", "deleted"]


def test_permissions_of_roles_and_keys(organization: Any) -> None:
    admin = Api(user=factories.admin(organization))
    made = add(admin)
    at = f"endpoints/{made['id']}/"
    dispatcher = Api(user=factories.dispatcher(organization))
    reader = Api(key=factories.api_key(organization, "read"))
    for who in (dispatcher, reader):
        assert who.get(at).status_code == 200
        assert who.get(f"{at}health/").status_code == 200
        assert who.post("endpoints/", {"name": "x", "url": "https://x.example/"}).status_code == 403
        assert who.patch(at, {"name": "x"}).status_code == 403
        assert who.post(f"{at}rotate_secret/").status_code == 403
        assert who.post(f"{at}disable/").status_code == 403
        assert who.delete(at).status_code == 403
    assert dispatcher.post(f"{at}pause/").status_code == 200
    assert reader.post(f"{at}resume/").status_code == 403
    assert dispatcher.post(f"{at}resume/").status_code == 200
    assert dispatcher.post(f"{at}test/").status_code == 202
    assert reader.post(f"{at}test/").status_code == 403


def test_another_organizations_endpoint_does_not_exist(api: Api) -> None:
    stranger = Api(key=factories.api_key(factories.organization()))
    at = f"endpoints/{add(api)['id']}/"
    assert stranger.get("endpoints/").json()["results"] == []
    assert stranger.get(at).status_code == 404
    assert stranger.patch(at, {"name": "x"}).status_code == 404
    assert stranger.delete(at).status_code == 404
    for act in ("rotate_secret", "pause", "resume", "disable", "enable", "test"):
        assert stranger.post(f"{at}{act}/").status_code == 404
    assert stranger.get(f"{at}health/").status_code == 404
    assert kinds(Endpoint.objects.get().pk) == ["added"]
