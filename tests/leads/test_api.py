"""Leads over HTTP: add, list, call now, cancel."""

from __future__ import annotations

from datetime import timedelta

import pytest

from dispatch.core import clock
from dispatch.core.api.serializers import MAX_LATEST
from dispatch.core.models import Event
from dispatch.leads.models import Campaign, DoNotCall, Lead, LeadDispatch
from dispatch.telephony.models import Call
from tests.api.client import Api
from tests.support import factories as make

pytestmark = pytest.mark.django_db


@pytest.fixture
def campaign() -> Campaign:
    organization = make.organization()
    pool = make.pool(organization)
    return Campaign.objects.create(
        organization=organization, pool=pool, code="spring", name="Spring", script="Hello."
    )


@pytest.fixture
def api(campaign) -> Api:
    return Api(key=make.api_key(campaign.organization, "leads:write", "read", "manage"))


def test_a_lead_is_added_and_found_again(api, campaign):
    due = (clock.now() + timedelta(days=2)).isoformat()
    body = {"campaign": "spring", "phone": "(602) 555-0134", "due_at": due, "external_id": "A-1", "data": {"a": 1}}
    made = api.post("leads/", body)
    assert made.status_code == 201
    assert (made.json()["phone"], made.json()["status"], made.json()["campaign"]) == (
        "+16025550134", "backlog", "spring",
    )  # fmt: skip
    again = api.post("leads/", body)
    assert (again.status_code, again.json()["id"]) == (200, made.json()["id"])
    shown = api.get(f"leads/{made.json()['id']}/").json()
    assert shown["why"].startswith("Scheduled for ")
    assert shown["calls"] == []
    assert [row["id"] for row in api.get("leads/?campaign=spring&status=backlog").json()["results"]] == [
        shown["id"]
    ]
    assert Event.objects.filter(kind="lead.created", subject_id=shown["id"], actor_type="api_key").exists()


def test_lead_with_very_many_calls_shows_the_last_ones(api, campaign):
    lead = api.post("leads/", {"campaign": "spring", "phone": "+16025550134"}).json()["id"]
    number = make.number(campaign.organization)
    Call.objects.bulk_create(
        Call(
            organization=campaign.organization, purpose="lead", subject_id=lead, attempt=attempt,
            account=number.account, number=number, pool=number.pool, line_slot=0, pool_slot=0,
            to_phone="+16025550134", from_phone=number.phone, status="busy", place_by=clock.now(),
            ended_at=clock.now(),
        )
        for attempt in range(1, MAX_LATEST + 6)
    )  # fmt: skip
    shown = api.get(f"leads/{lead}/").json()["calls"]
    assert [call["attempt"] for call in shown] == list(range(6, MAX_LATEST + 6))


def test_the_same_key_gives_the_first_answer_and_no_second_lead(api):
    body = {"campaign": "spring", "phone": "+16025550134"}
    first = api.post("leads/", body, Idempotency_Key="one")
    second = api.post("leads/", body, Idempotency_Key="one")
    assert (second.status_code, second.json(), second["Idempotency-Replayed"]) == (201, first.json(), "true")
    assert Lead.objects.count() == 1
    assert api.post("leads/", {**body, "phone": "+16025550135"}, Idempotency_Key="one").status_code == 422


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"phone": "+16025550134"}, "campaign"),
        ({"campaign": "autumn", "phone": "+16025550134"}, "campaign"),
        ({"campaign": "spring"}, "phone"),
        ({"campaign": "spring", "phone": "12"}, "phone"),
        ({"campaign": "spring", "phone": "+19005550134"}, "phone"),
        ({"campaign": "spring", "phone": "+442079460018"}, "phone"),
        ({"campaign": "spring", "phone": "+16025550134", "due_at": "tomorrow"}, "due_at"),
        ({"campaign": "spring", "phone": "+16025550134", "lat": 91}, "lat"),
        ({"campaign": "spring", "phone": "+16025550134", "lat": 33}, "lat"),
    ],
)
def test_invalid_fields_are_named(api, body, field):
    answer = api.post("leads/", body)
    assert (answer.status_code, answer["Content-Type"]) == (400, "application/problem+json")
    assert [error["field"] for error in answer.json()["errors"]] == [field]
    assert not Lead.objects.exists()


def test_bulk_keeps_valid_leads_and_names_invalid_ones(api):
    lines = [
        {"phone": "+16025550101", "external_id": "A"},
        {"phone": "nobody"},
        {"phone": "+16025550102", "due_at": "2027-01-01T09:00:00"},
        {"phone": "+16025550103", "colour": "red"},
        "text",
        {"phone": "+16025550104", "lat": 33.4, "lng": -112.0, "customer": "acme", "data": {"name": "Ann"}},
        {"phone": "+16025550105", "lat": True, "lng": 1},
        {"phone": "+16025550106", "lat": 33.4},
        {"phone": "+16025550101", "external_id": "A"},
    ]
    answer = api.post("leads/bulk/", {"campaign": "spring", "leads": lines})
    assert answer.status_code == 201
    told = answer.json()
    assert (told["accepted"], told["known"], told["rejected"]) == (2, 1, 6)
    assert {row["line"]: row["field"] for row in told["results"] if "field" in row} == {
        2: "phone", 3: "due_at", 4: "colour", 5: "", 7: "lat", 8: "lat",
    }  # fmt: skip
    assert sorted(str(phone) for phone in Lead.objects.values_list("phone", flat=True)) == [
        "+16025550101", "+16025550104",
    ]  # fmt: skip
    assert Event.objects.filter(kind="campaign.leads_added").count() == 1


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("customer", "Acme Inc."),
        ("customer", "not a slug!"),
        ("contact_from", "09:00+05:00"),
        ("contact_until", "20:00Z"),
    ],
)
def test_a_list_refuses_what_a_single_lead_may_not_have(api, field, value):
    lead = {"phone": "+16025550101", "contact_from": "09:00", "contact_until": "20:00", field: value}
    single = api.post("leads/", {"campaign": "spring", **lead})
    assert [error["field"] for error in single.json()["errors"]] == [field]
    (line,) = api.post("leads/bulk/", {"campaign": "spring", "leads": [lead]}).json()["results"]
    assert line["field"] == field
    assert not Lead.objects.exists()


def test_a_list_and_a_single_lead_ignore_blanks_around_texts(api):
    lead = {"phone": "+16025550101", "external_id": " A-1 ", "customer": "acme "}
    first = api.post("leads/", {"campaign": "spring", **lead}).json()["id"]
    (line,) = api.post("leads/bulk/", {"campaign": "spring", "leads": [lead]}).json()["results"]
    assert (line["id"], line["is_new"]) == (first, False)
    found = Lead.objects.get()
    assert (found.external_id, found.customer) == ("A-1", "acme")


@pytest.mark.parametrize("leads", [[], "many", None, {}, [{"phone": "+16025550101"}] * 10_001])
def test_a_list_has_one_to_ten_thousand_lines(api, leads):
    answer = api.post("leads/bulk/", {"campaign": "spring", "leads": leads})
    assert answer.status_code == 400
    assert [error["field"].split(".")[0] for error in answer.json()["errors"]] == ["leads"]


def test_a_waiting_lead_and_one_that_is_called_can_be_cancelled(api, campaign):
    waiting, called = (
        campaign.leads.create(organization=campaign.organization, phone=make.phone()) for _ in range(2)
    )
    assert api.delete(f"leads/{waiting.pk}/").status_code == 204
    assert api.delete(f"leads/{waiting.pk}/").status_code == 204  # a second time changes nothing
    waiting.refresh_from_db()
    assert (waiting.status, waiting.outcome) == ("finished", "cancelled")
    Lead.objects.filter(pk=called.pk).update(status="processing", claimed_at=clock.now(), attempts=1, token=1)
    assert api.delete(f"leads/{called.pk}/").status_code == 204
    called.refresh_from_db()
    assert (called.status, called.cancel_requested_at is not None) == ("processing", True)
    Lead.objects.filter(pk=called.pk).update(status="finished", outcome="answered", finished_at=clock.now())
    refused = api.delete(f"leads/{called.pk}/")
    assert (refused.status_code, "has ended (answered)" in refused.json()["detail"]) == (409, True)


def test_call_now_passes_every_eligibility_check(api, campaign):
    later = clock.now() + timedelta(days=3)
    lead = campaign.leads.create(organization=campaign.organization, phone=make.phone(), due_at=later)
    answer = api.post(f"leads/{lead.pk}/dispatch-now/")
    assert answer.status_code == 200
    lead.refresh_from_db()
    assert lead.due_at <= clock.now()
    assert lead.status == "backlog"


def test_a_campaign_is_made_changed_paused_and_resumed(api, campaign):
    body = {
        "code": "autumn", "name": "Autumn", "pool": campaign.pool.code, "weekdays": [0, 1], "window_from": "09:00",
        "script": "Hello.",
        "retry_rules": [{"outcome": "busy", "attempts": 4, "delay_s": 60}],
    }  # fmt: skip
    made = api.post("campaigns/", body)
    assert made.status_code == 201, made.content
    pk = made.json()["id"]
    assert [rule["outcome"] for rule in made.json()["retry_rules"]] == ["busy"]
    changed = api.patch(f"campaigns/{pk}/", {"retry_rules": [{"outcome": "no_answer"}], "name": "Fall"})
    assert [rule["outcome"] for rule in changed.json()["retry_rules"]] == ["no_answer"]
    assert api.post(f"campaigns/{pk}/pause/").json()["is_paused"] is True
    assert api.post(f"campaigns/{pk}/resume/").json()["is_paused"] is False
    kinds = list(Event.objects.filter(subject_id=pk).order_by("id").values_list("kind", flat=True))
    assert kinds[-2:] == ["campaign.paused", "campaign.resumed"]
    assert api.patch(f"campaigns/{pk}/", {"retry_rules": [{"attempts": 4}]}).status_code == 400
    twice = api.patch(f"campaigns/{pk}/", {"retry_rules": [{"outcome": "busy"}, {"outcome": "busy"}]})
    assert twice.status_code == 400


def test_dispatchers_pause_campaigns_and_admins_edit_them(campaign):
    dispatcher = Api(user=make.dispatcher(campaign.organization))
    path = f"campaigns/{campaign.pk}/"
    assert dispatcher.post(f"{path}pause/").json()["is_paused"] is True
    assert dispatcher.post(f"{path}resume/").json()["is_paused"] is False
    assert dispatcher.patch(path, {"name": "Fall"}).status_code == 403
    reader = Api(key=make.api_key(campaign.organization, "read"))
    assert reader.post(f"{path}pause/").status_code == 403


@pytest.mark.parametrize("field", ["precheck_url", "answer_url"])
def test_private_address_is_rejected(api, campaign, field):
    answer = api.patch(f"campaigns/{campaign.pk}/", {field: "http://169.254.169.254/latest/"})
    assert answer.status_code == 400
    assert [error["field"] for error in answer.json()["errors"]] == [field]


def test_secret_is_write_only(api, campaign):
    secret = "whsec_" + "A" * 44
    answer = api.patch(f"campaigns/{campaign.pk}/", {"precheck_secret": secret})
    assert answer.status_code == 200
    assert secret not in answer.content.decode()
    assert api.patch(f"campaigns/{campaign.pk}/", {"precheck_secret": "short"}).status_code == 400


def test_progress_counts_by_status_outcome_and_reason(api, campaign):
    for reason in ("", "retry", "retry"):
        campaign.leads.create(organization=campaign.organization, phone=make.phone(), reason=reason)
    later = clock.now() + timedelta(days=7)
    campaign.leads.create(organization=campaign.organization, phone=make.phone(), due_at=later)
    campaign.leads.create(
        organization=campaign.organization, phone=make.phone(), status="finished", outcome="answered",
        finished_at=clock.now(),
    )  # fmt: skip
    assert api.get(f"campaigns/{campaign.pk}/progress/").json() == {
        "total": 5, "statuses": {"backlog": 4, "finished": 1}, "outcomes": {"answered": 1},
        "waiting": {"due": 1, "retry": 2, "scheduled": 1},
    }  # fmt: skip


def test_the_organizations_switch_is_off_until_it_is_set(api, campaign):
    assert api.get("lead-dispatch/").json() == {"mode": "off", "is_paused": False}
    assert api.patch("lead-dispatch/", {"mode": "dry_run"}).json() == {"mode": "dry_run", "is_paused": False}
    assert api.patch("lead-dispatch/", {"is_paused": True}).json() == {"mode": "dry_run", "is_paused": True}
    assert api.patch("lead-dispatch/", {"mode": "full"}).status_code == 400
    assert LeadDispatch.objects.get(organization=campaign.organization).is_paused
    assert Event.objects.filter(kind="lead_dispatch.switched").count() == 2


def test_superusers_stop_all_calling_and_nobody_else(api, campaign):
    LeadDispatch.objects.create(organization=campaign.organization)
    root = Api(user=make.user("Root", is_superuser=True), organization=campaign.organization.slug)
    assert root.get("lead-engine/").json() == {"is_stopped": False, "promoter_paused": False}
    assert root.patch("lead-engine/", {"is_stopped": True}).json() == {
        "is_stopped": True,
        "promoter_paused": False,
    }
    assert root.patch("lead-engine/", {"is_stopped": "maybe"}).status_code == 400
    told = Event.objects.get(kind="lead_engine.switched")
    assert (told.organization_id, told.data) == (campaign.organization_id, {"is_stopped": True})
    for other in (api, Api(user=make.admin(campaign.organization)), Api()):
        assert other.get("lead-engine/").status_code in (401, 403)
        assert other.patch("lead-engine/", {"is_stopped": False}).status_code in (401, 403)
    assert root.get("lead-engine/").json()["is_stopped"]
    assert root.patch("lead-engine/", {"is_stopped": False, "promoter_paused": True}).json()["promoter_paused"]


def test_do_not_call_entries_are_listed_and_removed(api, campaign):
    made = api.post("do-not-call/", {"phone": "602 555 0134", "note": "asked by mail"})
    assert (made.status_code, made.json()["phone"], made.json()["source"]) == (201, "+16025550134", "api")
    assert api.get("do-not-call/?phone=%2B16025550134").json()["results"][0]["id"] == made.json()["id"]
    assert api.delete(f"do-not-call/{made.json()['id']}/").status_code == 204
    assert not DoNotCall.objects.exists()
    told = Event.objects.filter(kind__startswith="do_not_call").order_by("id")
    assert list(told.values_list("kind", flat=True)) == ["do_not_call.added", "do_not_call.removed"]


@pytest.mark.parametrize("path", ["leads/", "do-not-call/"])
def test_a_filter_by_phone_reads_national_numbers_and_names_bad_ones(api, campaign, path):
    organization = campaign.organization
    campaign.leads.create(organization=organization, phone="+16025550134")
    DoNotCall.objects.create(organization=organization, phone="+16025550134")
    for typed in ("%2B16025550134", "(602) 555-0134", "+1 602 555 0134"):
        assert len(api.get(f"{path}?phone={typed}").json()["results"]) == 1
    assert api.get(f"{path}?phone=602 555 0199").json()["results"] == []
    for typed in ("banana", "12", "-"):
        answer = api.get(f"{path}?phone={typed}")
        assert answer.status_code == 400
        assert [error["field"] for error in answer.json()["errors"]] == ["phone"]


UNSTORABLE = ['{"score": 1e999}', '{"deep": [{"score": -1e999}]}', '{"name": "\\u0000"}', '{"name": "\\ud800"}']


@pytest.mark.parametrize("data", UNSTORABLE)
def test_data_that_cannot_be_stored_is_an_error_of_its_line(api, data):
    lines = f'{{"phone": "+16025550101"}}, {{"phone": "+16025550102", "data": {data}}}, {{"\\ud800": 1}}'
    answer = api.post("leads/bulk/", f'{{"campaign": "spring", "leads": [{lines}, {{"phone": "+16025550103"}}]}}')
    assert answer.status_code == 201, answer.content
    told = answer.json()
    assert (told["accepted"], told["rejected"]) == (2, 2)
    assert told["results"][1]["field"].split(".")[0] == "data"
    assert told["results"][2]["field"] == ""
    assert Lead.objects.count() == 2


@pytest.mark.parametrize("data", UNSTORABLE)
def test_data_of_one_lead_that_cannot_be_stored_is_refused(api, data):
    answer = api.post("leads/", f'{{"campaign": "spring", "phone": "+16025550101", "data": {data}}}')
    assert (answer.status_code, answer.json()["errors"][0]["code"]) == (400, "unstorable")
    assert answer.json()["errors"][0]["field"].split(".")[0] == "data"
    assert not Lead.objects.exists()


UNUSABLE = {
    "due_at before the first year": '"due_at": "0001-01-01T00:00:00+23:59"',
    "due_at too long ago": '"due_at": "0001-01-01T00:00:00Z"',
    "due_at too far ahead": '"due_at": "9999-12-31T23:59:59Z"',
    "data nested too deeply": f'"data": {{"a": {"[" * 70}{"]" * 70}}}',
    "an integer of 5,000 digits": f'"data": {{"a": {"1" * 5000}}}',
}


@pytest.mark.parametrize("name", UNUSABLE)
def test_an_unusable_line_loses_no_other_line(api, name):
    lines = (
        f'{{"phone": "+16025550101"}}, {{"phone": "+16025550102", {UNUSABLE[name]}}}, {{"phone": "+16025550103"}}'
    )
    answer = api.post("leads/bulk/", f'{{"campaign": "spring", "leads": [{lines}]}}')
    assert answer.status_code == 201, answer.content
    assert (answer.json()["accepted"], answer.json()["rejected"]) == (2, 1)
    assert answer.json()["results"][1]["error"]
    assert [str(lead.phone)[-2:] for lead in Lead.objects.order_by("pk")] == ["01", "03"]


@pytest.mark.parametrize("due", ["0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z"])
def test_a_lead_is_due_in_a_year_that_can_be_shown(api, due):
    answer = api.post("leads/", {"campaign": "spring", "phone": "+16025550101", "due_at": due})
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (400, "due_at")


def test_a_body_nested_too_deeply_beside_its_lines_is_refused(api):
    answer = api.post("leads/bulk/", f'{{"campaign": {"[" * 70}{"]" * 70}, "leads": []}}')
    assert (answer.status_code, answer.json()["errors"][0]["code"]) == (400, "parse_error")


@pytest.mark.parametrize("code", ["NaN", "Infinity", "-Infinity"])
def test_invalid_json_number_is_a_parse_error(api, code):
    answer = api.post(
        "leads/bulk/", f'{{"campaign": "spring", "leads": [{{"phone": "1", "data": {{"a": {code}}}}}]}}'
    )
    assert (answer.status_code, answer.json()["errors"][0]["code"]) == (400, "parse_error")


@pytest.mark.parametrize(
    "keys", ['["a"]', '{"12": "no"}', '{"1": 5}', '{"1": {}}', '"hello"', "null", '{"x": "y"}']
)
def test_keys_of_a_campaign_are_digits_with_words(api, campaign, keys):
    answer = api.patch(f"campaigns/{campaign.pk}/", f'{{"keys": {keys}}}')
    assert answer.status_code == 400
    assert answer.json()["errors"][0]["field"].split(".")[0] == "keys"
