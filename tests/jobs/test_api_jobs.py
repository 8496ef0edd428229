"""Jobs through the API: reading, filtering, acting, and being refused."""

from __future__ import annotations

import pytest
from django.core.management import call_command

from dispatch.core import clock
from dispatch.core.models import Event
from dispatch.jobs import services
from dispatch.jobs.models import DispatchPolicy, Job
from dispatch.jobs.timeline import describe_event
from dispatch.technicians.models import Technician
from tests.api.client import Api
from tests.support import factories

pytestmark = pytest.mark.django_db


class Office:
    """An organization with a dispatcher at work; its jobs never ring, for it has no number."""

    def __init__(self, name: str = "Copper State Plumbing") -> None:
        self.organization = factories.organization(name)
        self.service = factories.service_type(self.organization, "plumbing")
        self.maria = factories.dispatcher(self.organization, "Maria Lopez")
        self.api = Api(user=self.maria)
        self.ann = factories.technician(self.organization, "Ann")

    def job(self, **fields) -> Job:
        form = {
            "customer_name": "Dana Whitfield",
            "customer_phone": "+16025550123",
            "service_type": self.service,
            "lat": factories.PHOENIX.lat,
            "lng": factories.PHOENIX.lng,
            **fields,
        }
        from tests.harness.jobs import JOHN

        submission = services.accept_submission(self.organization, form, raw={}, actor=JOHN)
        job = services.start_job(submission.pk, place=False)
        assert job is not None
        job.refresh_from_db()
        return job


@pytest.fixture
def office() -> Office:
    return Office()


def ids(answer) -> list[int]:
    assert answer.status_code == 200, answer.content
    return [row["id"] for row in answer.json()["results"]]


def test_a_job_shows_its_candidates_offers_history_and_version(office):
    job = office.job()
    answer = office.api.get(f"jobs/{job.pk}/")
    body = answer.json()
    assert answer["ETag"] == f'"{job.version}"'
    assert (body["status"], body["waiting_for"], body["service_type"]) == ("dispatching", "line", "plumbing")
    assert body["candidates"][0]["technician"]["name"] == "Ann"
    assert body["candidates"][0]["verdict"] == "in"
    assert body["timeline"][0]["text"] == "John Sedlak received the form: Plumbing"
    assert "assign" in body["actions"]
    assert "complete" not in body["actions"]


def test_jobs_are_filtered(office):
    waiting = office.job()
    Technician.objects.update(on_duty=False)
    pending = office.job(priority=1)
    assert ids(office.api.get("jobs/")) == [pending.pk, waiting.pk]
    for query, found in {
        "status=pending": [pending.pk],
        "status=pending&status=dispatching": [pending.pk, waiting.pk],
        "pending_reason=nobody_near": [pending.pk],
        "priority=emergency": [pending.pk],
        "service_type=plumbing": [pending.pk, waiting.pk],
        "service_type=other": [],
        "needs_attention=true": [pending.pk],
        "needs_attention=false": [waiting.pk],
        f"technician={office.ann.pk}": [],
        "created_after=2999-01-01T00:00Z": [],
    }.items():
        assert ids(office.api.get(f"jobs/?{query}")) == found, query
    clock.travel(1000)
    assert ids(office.api.get("jobs/?needs_attention=true")) == [pending.pk, waiting.pk], "it is overdue"


def test_assigning_through_the_api(office):
    job = office.job()
    answer = office.api.post(f"jobs/{job.pk}/assign/", {"technician": office.ann.pk, "version": job.version})
    assert answer.status_code == 200, answer.content
    assert answer.json()["technician"]["name"] == "Ann"
    assert answer.json()["timeline"][-1]["text"] == "Maria Lopez assigned the job to Ann"


def test_an_unfit_technician_needs_confirming(office):
    job = office.job()
    Technician.objects.update(on_duty=False)
    body = {"technician": office.ann.pk}
    answer = office.api.post(f"jobs/{job.pk}/assign/", body)
    assert (answer.status_code, answer.json()["type"]) == (409, "urn:dispatch:problem:unfit")
    assert answer.json()["conflict"]["warnings"] == ["Ann: off duty."]
    assert office.api.post(f"jobs/{job.pk}/assign/", {**body, "confirm_unfit": True}).status_code == 200


def test_a_stale_version_is_refused_with_who_did_what_when(office):
    job = office.job()
    john = Api(user=factories.dispatcher(office.organization, "John Sedlak"))
    assert john.post(f"jobs/{job.pk}/pause/", {"version": job.version}).status_code == 200
    for body, headers in [({"version": job.version}, {}), ({}, {"If_Match": f'"{job.version}"'})]:
        answer = office.api.post(f"jobs/{job.pk}/cancel/", {"reason": "x", **body}, **headers)
        assert answer.status_code == 409
        assert answer.json()["detail"].endswith(", John Sedlak paused the job.")
        assert answer.json()["conflict"]["by"]["label"] == "John Sedlak"
    assert Job.objects.get().status == "dispatching"


def test_every_action_has_a_url(office):
    job = office.job()
    steps = [
        ("pause", {}, "dispatching"),
        ("resume", {}, "dispatching"),
        ("call-next", {"note": "hurry"}, "dispatching"),
        ("assign", {"technician": office.ann.pk}, "assigned"),
        ("correct", {"customer_phone": "(602) 555-0199"}, "assigned"),
        ("cannot-make-it", {}, "pending"),
        ("cancel", {"reason": "not needed"}, "cancelled"),
        ("dispatch-again", {}, "pending"),
        ("assign", {"technician": office.ann.pk, "confirm_unfit": True}, "assigned"),
        ("mark-started", {}, "assigned"),
        ("complete", {}, "completed"),
        ("reopen", {"note": "wrong tap"}, "assigned"),
    ]
    for action, body, status in steps:
        answer = office.api.post(f"jobs/{job.pk}/{action}/", body)
        assert (action, answer.status_code) == (action, 200), answer.content
        assert answer.json()["status"] == status, action
    refused = office.api.post(f"jobs/{job.pk}/extend/", {"seconds": 60})
    assert (refused.status_code, refused.json()["type"]) == (409, "urn:dispatch:problem:illegal_transition")
    assert refused.json()["detail"].endswith(", Maria Lopez reopened the job (“wrong tap”).")


@pytest.mark.parametrize(
    ("action", "body", "field"),
    [
        ("cancel", {}, "reason"),
        ("assign", {}, "technician"),
        ("extend", {"seconds": 99_999}, "seconds"),
        ("pause", {"versoin": 1}, "versoin"),
        ("assign", {"technician": 2**70}, "technician"),
        ("dispatch-again", {"lat": 3}, "lng"),
    ],
)
def test_invalid_action_input_is_named(office, action, body, field):
    job = office.job()
    answer = office.api.post(f"jobs/{job.pk}/{action}/", body)
    assert answer.status_code == 400, answer.content
    assert [error["field"] for error in answer.json()["errors"]] == [field]


def test_a_malformed_if_match_is_refused(office):
    job = office.job()
    assert office.api.post(f"jobs/{job.pk}/pause/", {}, If_Match="three").status_code == 400


def test_nobody_reaches_another_organizations_jobs(office):
    job = office.job()
    outsider = Office("Elsewhere")
    assert outsider.api.get(f"jobs/{job.pk}/").status_code == 404
    assert ids(outsider.api.get("jobs/")) == []
    for action in ("assign", "cancel", "pause", "complete", "dispatch-again"):
        assert outsider.api.post(f"jobs/{job.pk}/{action}/", {"reason": "x", "technician": 1}).status_code == 404
    own = outsider.job()
    foreign = outsider.api.post(f"jobs/{own.pk}/assign/", {"technician": office.ann.pk, "confirm_unfit": True})
    assert (foreign.status_code, foreign.json()["errors"][0]["field"]) == (400, "technician")
    assert outsider.api.get(f"jobs/?technician={office.ann.pk}").status_code == 400


def test_keys_act_only_with_their_scope(office):
    job = office.job()
    reader = Api(key=factories.api_key(office.organization, "read"))
    actor = Api(key=factories.api_key(office.organization, "jobs:write", "read", name="Telematics"))
    assert reader.get(f"jobs/{job.pk}/").status_code == 200
    assert reader.post(f"jobs/{job.pk}/pause/").status_code == 403
    answer = actor.post(f"jobs/{job.pk}/pause/")
    assert answer.json()["timeline"][-1]["text"] == "Telematics paused the job"


def test_admins_manage_service_types_and_policies(office):
    admin = Api(user=factories.admin(office.organization, "Grace"))
    made = admin.post("service-types/", {"code": "gas", "name": "Gas leak"})
    assert made.status_code == 201, made.content
    assert admin.post("service-types/", {"code": "gas", "name": "Again"}).status_code == 400
    policy = admin.post("policies/", {"answer_timeout_s": 120, "rounds": 2})
    assert policy.status_code == 201, policy.content
    assert policy.json()["effective"]["answer_timeout_s"] == 120
    assert admin.post("policies/", {"rounds": 3}).status_code == 400, "there is one for the organization"
    special = admin.post("policies/", {"service_type": "gas", "ring_timeout_s": 119})
    assert special.json()["effective"]["rounds"] == 2
    office_type = office.api.post("service-types/", {"code": "x", "name": "X"})
    assert office_type.status_code == 403


def test_the_log_says_who_changed_policies_and_service_types(office):
    gas = factories.skill(office.organization, "gas-fitter")
    admin = Api(user=factories.admin(office.organization, "Grace"))
    made = admin.post("service-types/", {"code": "gas", "name": "Gas leak", "required_skills": [gas.code]}).json()
    for _ in range(2):  # the second time nothing changes
        admin.patch(f"service-types/{made['id']}/", {"name": "Gas", "required_skills": [gas.code]})
    policy = admin.post("policies/", {"answer_timeout_s": 120, "service_type": "gas"}).json()
    admin.patch(f"policies/{policy['id']}/", {"rounds": 2})
    admin.delete(f"policies/{policy['id']}/")
    told = Event.objects.filter(subject_type__in=["service_type", "policy"], actor_label="Grace").order_by("id")
    assert [(event.kind, event.data.get("changes")) for event in told] == [
        ("service_type.added", {"code": "gas", "name": "Gas leak", "required_skills": [str(gas)]}),
        ("service_type.changed", {"name": "Gas"}),
        ("policy.added", {"answer_timeout_s": 120, "service_type": "Gas"}),
        ("policy.changed", {"rounds": 2}),
        ("policy.removed", None),
    ]


def test_policy_with_ring_time_above_delay_is_rejected_with_fallbacks(office):
    admin = Api(user=factories.admin(office.organization, "Grace"))
    own = admin.post("policies/", {"answer_timeout_s": 60}).json()
    answer = admin.post("policies/", {"service_type": "plumbing", "ring_timeout_s": 60})
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (400, "ring_timeout_s")
    assert admin.post("policies/", {"service_type": "plumbing", "ring_timeout_s": 50}).status_code == 201
    shorter = admin.patch(f"policies/{own['id']}/", {"answer_timeout_s": 45})
    assert "For Plumbing" in shorter.json()["errors"][0]["detail"]
    assert DispatchPolicy.objects.get(pk=own["id"]).answer_timeout_s == 60


def test_policy_required_by_another_cannot_be_deleted(office):
    admin = Api(user=factories.admin(office.organization, "Grace"))
    own = admin.post("policies/", {"answer_timeout_s": 900}).json()
    special = admin.post("policies/", {"service_type": "plumbing", "ring_timeout_s": 400}).json()
    refused = admin.delete(f"policies/{own['id']}/")
    assert (refused.status_code, "For Plumbing: Ring time (400 s)" in refused.json()["detail"]) == (409, True)
    assert admin.delete(f"policies/{special['id']}/").status_code == 204
    assert admin.delete(f"policies/{own['id']}/").status_code == 204


def test_lists_and_pages_take_no_query_for_each_row(office, django_assert_max_num_queries):
    for place in range(6):
        factories.technician(office.organization, f"Unit {place}")
    jobs = [office.job() for _ in range(6)]
    for path in ("jobs/", "submissions/", f"jobs/{jobs[0].pk}/", "jobs/?needs_attention=true&status=dispatching"):
        with django_assert_max_num_queries(12):
            office.api.get(path)


def test_the_schema_is_clean(db, capsys):
    call_command("spectacular", "--file", "/dev/null")
    told = capsys.readouterr().err
    ours = [line for line in told.splitlines() if "dispatch/jobs" in line or "jobs." in line]
    assert ours == []


def test_right_to_left_name_keeps_following_numbers_in_order():
    skipped = {"technician": "محمد الأحمدي", "reason": "2 of 2 open jobs"}
    told = describe_event(Event(kind="job.skipped", actor_label="Dispatch", data=skipped))
    assert told.text == "Dispatch skipped \u2068محمد الأحمدي\u2069: 2 of 2 open jobs"
    assert describe_event(Event(kind="job.skipped", data={"technician": "Müßig"})).did == "skipped Müßig"
