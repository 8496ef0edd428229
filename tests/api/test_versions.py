"""Concurrent edits: the later writer of a stale version learns who changed what meanwhile."""

from __future__ import annotations

import pytest
from django.core.exceptions import ValidationError

from dispatch.capacity.api import PoolSerializer
from dispatch.capacity.models import DispatchPool, OutboundNumber, ProviderAccount
from dispatch.core.models import Event
from dispatch.jobs.models import DispatchPolicy, ServiceType
from dispatch.outbox.models import Endpoint
from dispatch.technicians.models import Skill, Technician
from notifications.api import config
from notifications.models import Alert, EscalationPolicy, Route
from tests.api.client import Api

pytestmark = pytest.mark.django_db

EDITABLE = [
    ("pools", DispatchPool, {"concurrency": 7}, {"concurrency": 8}),
    ("numbers", OutboundNumber, {"name": "Front"}, {"name": "Back"}),
    ("provider-accounts", ProviderAccount, {"name": "Main"}, {"name": "Spare"}),
    ("service-types", ServiceType, {"name": "Boiler"}, {"name": "Heater"}),
    ("policies", DispatchPolicy, {"rounds": 2}, {"rounds": 3}),
    ("technicians", Technician, {"name": "Ann"}, {"name": "Anna"}),
    ("skills", Skill, {"name": "Gas"}, {"name": "Gas fitting"}),
    ("endpoints", Endpoint, {"timeout_s": 7.0}, {"timeout_s": 8.0}),
    ("notification-rules", Route, {"to": "admins"}, {"is_on": False}),
]


@pytest.mark.parametrize(("path", "model", "first", "second"), EDITABLE, ids=[row[0] for row in EDITABLE])
def test_stale_etag_is_rejected(ours, path, model, first, second):
    api = Api(user=ours.admin)
    one = f"{path}/{ours.row(model).pk}/"
    read = api.get(one)["ETag"]
    done = api.patch(one, first, If_Match=read)
    assert done.status_code == 200, done.content
    assert done["ETag"] not in ("", read)
    refused = api.patch(one, second, If_Match=read)
    assert refused.status_code == 409
    problem = refused.json()
    assert problem["type"] == "urn:dispatch:problem:stale"
    assert problem["conflict"]["by"]["label"] == "Alphaville admin"
    assert problem["detail"].startswith("Alphaville admin changed it at ")
    assert api.patch(one, second, If_Match=f'W/{done["ETag"]}, "other"').status_code == 200
    assert api.patch(one, first).status_code == 200, "who says nothing of a version overwrites"
    assert api.patch(one, second, If_Match="*").status_code == 200


def test_values_that_change_by_themselves_cause_no_conflict(ours):
    api = Api(user=ours.admin)
    one = f"technicians/{ours.row(Technician).pk}/"
    read = api.get(one)["ETag"]
    Technician.objects.update(open_jobs=3)
    assert api.get(one)["ETag"] == read


def test_creation_and_deletion_record_the_actor(ours):
    api = Api(user=ours.admin)
    Route.objects.all().delete()
    made = api.post("notification-rules/", {"kind": "endpoint.disabled", "to": "dispatchers"})
    one = f"notification-rules/{made.json()['id']}/"
    assert api.delete(one, If_Match='"0"').status_code == 409
    assert api.delete(one, If_Match=made["ETag"]).status_code == 204
    kinds = Event.objects.filter(subject_type="notification_rule").order_by("pk")
    assert [(event.kind.partition(".")[2], event.actor_label) for event in kinds] == [
        ("added", "Alphaville admin"),
        ("removed", "Alphaville admin"),
    ]


def test_the_escalation_policy_has_a_version_too(ours):
    api = Api(user=ours.admin)
    read = api.get("escalation-policy/")["ETag"]
    step = {"audience": "dispatchers", "after_s": 30}
    assert api.send("PUT", "escalation-policy/", {"steps": [step]}, If_Match=read).status_code == 200
    assert api.send("PUT", "escalation-policy/", {"steps": []}, If_Match=read).status_code == 409


def test_etag_is_of_the_values_in_the_response(ours, monkeypatch):
    api, pool = Api(user=ours.admin), ours.row(DispatchPool)
    show = PoolSerializer.to_representation

    def change_meanwhile(self, row):
        shown = show(self, row)
        DispatchPool.objects.filter(pk=row.pk).update(concurrency=9)
        return shown

    with monkeypatch.context() as patched:
        patched.setattr(PoolSerializer, "to_representation", change_meanwhile)
        read = api.get(f"pools/{pool.pk}/")
    assert read.json()["concurrency"] == pool.concurrency
    stale = api.patch(f"pools/{pool.pk}/", {"name": "New"}, If_Match=read["ETag"])
    assert (stale.status_code, stale.json()["type"]) == (409, "urn:dispatch:problem:stale")


def test_etag_of_the_escalation_policy_is_of_the_values_in_the_response(ours, monkeypatch):
    api = Api(user=ours.admin)
    api.send("PUT", "escalation-policy/", {"repeat_s": 60})
    plan_of = config.plan_of

    def change_meanwhile(organization_id):
        plan = plan_of(organization_id)
        EscalationPolicy.objects.update(repeat_s=90)
        return plan

    with monkeypatch.context() as patched:
        patched.setattr(config, "plan_of", change_meanwhile)
        read = api.get("escalation-policy/")
    assert read.json()["repeat_s"] == 60
    assert api.send("PUT", "escalation-policy/", {"repeat_s": 30}, If_Match=read["ETag"]).status_code == 409


CREATED = [
    ("pools", {"code": "front", "name": "Front"}),
    ("service-types", {"code": "drain", "name": "Drain", "required_skills": [], "spoken_name": " drain "}),
    ("policies", {"rounds": 2, "quiet_from": "21:00", "quiet_until": "07:30", "quiet_for": "normal"}),
    ("technicians", {"name": "Cy", "phone": "(602) 555-0188", "lat": "33.450000001", "lng": -112, "shifts": []}),
    ("skills", {"code": "pumps", "name": "Pumps"}),
    ("notification-rules", {"kind": "endpoint.disabled", "to": "dispatchers"}),
]


@pytest.mark.parametrize(("path", "body"), CREATED, ids=[row[0] for row in CREATED])
def test_created_row_has_the_etag_of_its_next_read(ours, path, body):
    for model in (DispatchPolicy, Route):
        model.objects.all().delete()
    api = Api(user=ours.admin)
    made = api.post(f"{path}/", body)
    assert made.status_code == 201, made.content
    assert made["ETag"] == api.get(f"{path}/{made.json()['id']}/")["ETag"]


def test_token_is_write_only(ours):
    api = Api(user=ours.admin)
    given = {"name": "Second", "account_sid": f"AC{2:032d}", "auth_token": "s3cret-token"}
    made = api.post("provider-accounts/", given)
    assert made.status_code == 201
    assert "s3cret-token" not in made.content.decode()
    one = f"provider-accounts/{made.json()['id']}/"
    changed = api.patch(one, {"auth_token": "n3w-token"})
    assert changed.json()["is_rotating"] is True
    assert "token" not in changed.content.decode().replace("auth_token", "")
    row = ProviderAccount.objects.get(pk=made.json()["id"])
    assert (row.auth_token, row.previous_auth_token) == ("n3w-token", "s3cret-token")
    assert api.post(f"{one}end-rotation/").json()["is_rotating"] is False
    assert "s3cret" not in str(list(Event.objects.values_list("data", flat=True)))
    assert api.post("provider-accounts/", {"name": "Third", "account_sid": f"AC{3:032d}"}).status_code == 400


@pytest.mark.parametrize(
    "account_id", ["SK" + "0" * 32, "ACshort", "ac" + "0" * 32, "+16025550100", "AC" + "g" * 32, "AC" + "0" * 33]
)
def test_invalid_account_id_is_rejected(ours, account_id):
    api = Api(user=ours.admin)
    refused = api.post("provider-accounts/", {"name": "Second", "account_sid": account_id, "auth_token": "s3cret"})
    assert (refused.status_code, [one["field"] for one in refused.json()["errors"]]) == (400, ["account_sid"])
    with pytest.raises(ValidationError, match="AC"):
        ProviderAccount(name="Second", account_sid=account_id).clean()


def test_provider_must_be_known(ours):
    api = Api(user=ours.admin)
    given = {"name": "Second", "account_sid": "AC2", "auth_token": "s3cret-token", "provider": "carrier-pigeon"}
    refused = api.post("provider-accounts/", given)
    assert (refused.status_code, [one["field"] for one in refused.json()["errors"]]) == (400, ["provider"])
    assert api.get("provider-accounts/?provider=carrier-pigeon").status_code == 400
    assert api.get("provider-accounts/?provider=twilio").json()["results"]


def test_pools_and_numbers_can_be_paused_and_show_their_use(ours):
    api = Api(user=ours.dispatcher)
    pool = ours.row(DispatchPool)
    seen = api.get(f"pools/{pool.pk}/").json()
    assert (seen["in_use"], seen["is_paused"]) == (1, False)
    assert api.post(f"pools/{pool.pk}/pause/").json()["is_paused"] is True
    assert api.post(f"numbers/{ours.row(OutboundNumber).pk}/pause/").json()["is_paused"] is True
    assert api.post(f"pools/{pool.pk}/resume/").json()["is_paused"] is False
    assert api.patch(f"pools/{pool.pk}/", {"concurrency": 3}).status_code == 403, "dispatchers pause, admins edit"


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("pools/", {"code": "x", "name": "X", "concurrency": 0}, "concurrency"),
        ("pools/", {"code": "alphaville-pool", "name": "X"}, "code"),
        ("pools/", {"code": "y", "name": "Y", "is_default": True}, "is_default"),
        ("numbers/{}/", {"max_channels": 1, "reserved_for_alerts": 2}, "max_channels"),
        ("numbers/{}/", {"phone": "12"}, "phone"),
        ("numbers/{}/", {"pool": "nowhere"}, "pool"),
        ("notification-rules/", {"kind": "job.pending", "is_on": False}, "is_on"),
        ("notification-rules/", {"kind": "job.nothing"}, "kind"),
        ("notification-preferences/job.pending/", {"email": "perhaps"}, "email"),
    ],
)
def test_invalid_value_is_rejected_with_its_field(ours, path, body, field):
    api = Api(user=ours.admin)
    if path == "pools/" and body.get("is_default"):
        DispatchPool.objects.filter(pk=ours.row(DispatchPool).pk).update(is_default=True)
    method = "PATCH" if "{}" in path or "preferences" in path else "POST"
    answer = api.send(method, path.format(ours.row(OutboundNumber).pk), body)
    assert answer.status_code == 400, answer.content
    assert answer.json()["errors"][0]["field"] == field


def test_preferences_are_personal(ours):
    mine, theirs = Api(user=ours.admin), Api(user=ours.dispatcher)
    before = {row["kind"]: row for row in mine.get("notification-preferences/").json()}
    assert before["job.pending"] == {
        "kind": "job.pending", "label": "A job needs a dispatcher", "level": "critical", "shown": True,
        "email": True, "sms": True, "voice": True, "chat": True, "push": True, "is_own": False,
    }  # fmt: skip
    done = mine.patch("notification-preferences/job.pending/", {"voice": False, "shown": False}).json()
    assert (done["voice"], done["sms"], done["shown"], done["is_own"]) == (False, True, True, True)
    other = {row["kind"]: row for row in theirs.get("notification-preferences/").json()}
    assert other["job.pending"]["voice"] is True
    assert mine.patch("notification-preferences/no.such/", {}).status_code == 404
    assert Api(key=ours.key).get("notification-preferences/").status_code == 403


def test_alert_is_acknowledged_by_api_and_shows_recipients(ours):
    alert = ours.row(Alert)
    seen = Api(key=ours.key).get(f"alerts/{alert.pk}/").json()
    assert [(one["to"], one["channel"], one["status"]) for one in seen["deliveries"]] == [
        ("Alphaville dispatcher", "email", "failed")
    ]
    assert Api(key=ours.key).post(f"alerts/{alert.pk}/acknowledge/").status_code == 403
    assert Api(user=ours.admin).post(f"alerts/{alert.pk}/acknowledge/").json()["status"] == "acknowledged"
    assert Api(key=ours.key).get("alerts/?status=open").json()["results"] == []
