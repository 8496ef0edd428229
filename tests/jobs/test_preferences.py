"""Preferred skills raise the rank; a customer's preferred technician is called first if eligible."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import pytest
from django.conf import settings

from dispatch.console.board import technician_picker
from dispatch.core.db import lock_waits
from dispatch.core.models import Event
from dispatch.jobs import rules, services
from dispatch.jobs.models import DispatchPolicy, Job, ServiceType, Submission
from dispatch.jobs.rules import CascadePolicy, Preferences
from dispatch.jobs.services import ranking
from dispatch.schedules.kinds import submission as scheduled
from tests.api.client import Api
from tests.jobs.test_threads import MARIA, Desk
from tests.jobs.test_wider_rounds import GROWING, declines, live, moves_on, placed, said, signed_in
from tests.support import factories
from tests.support.row_locks import held

NOW = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
POLICY = CascadePolicy(**settings.DISPATCH_POLICY_DEFAULTS)
PREFERRED = "the customer's preferred technician"


# --- the rules --------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Someone:
    technician_id: int
    distance_m: int = 1000
    skill_ids: tuple[int, ...] = ()
    verdict: str = "in"
    open_jobs: int = 0
    max_open_jobs: int = 1
    last_offered_at: datetime | None = None
    travel_s: int | None = None


def order(people: list[Someone], preferences: Preferences, policy: CascadePolicy = POLICY) -> list[int]:
    ranked = rules.rank_candidates(policy, people, NOW, preferences)
    return [candidate.technician.technician_id for candidate in ranked]


def test_preferred_skills_count_by_their_weight():
    near, far = Someone(1, 5_000), Someone(2, 25_000, skill_ids=(7,))
    gas = Preferences({7: "Gas"})
    assert order([near, far], Preferences()) == [1, 2]
    assert order([near, far], gas) == [2, 1], "half the radius counts 0.4, the missing skill 0.5"
    assert order([near, far], gas, replace(POLICY, weight_skills=0.3)) == [1, 2]
    assert order([near, far], gas, replace(POLICY, weight_skills=0.0)) == [1, 2]


def test_each_preferred_skill_counts_its_share():
    both, one, none = Someone(1, 3000, (7, 8, 9)), Someone(2, 2000, (8,)), Someone(3, 1000)
    preferences = Preferences({7: "Gas", 8: "Roof"})
    assert [preferences.missing_share(each) for each in (both, one, none)] == [0.0, 0.5, 1.0]
    assert order([none, one, both], preferences) == [1, 2, 3]


def test_preferred_technician_is_first_whatever_the_score():
    people = [Someone(1), Someone(2, 49_000, open_jobs=1, last_offered_at=NOW), Someone(3, verdict="out")]
    assert order(people, Preferences(technician_id=2)) == [2, 1, 3]
    assert order(people, Preferences(technician_id=9)) == [1, 2, 3]


# --- preferred skills -------------------------------------------------------------------------------------------
@pytest.fixture
def desk(db: Any) -> Desk:
    return Desk()


def test_technician_with_the_preferred_skill_is_called_first(desk):
    gas = factories.skill(desk.organization, "gas")
    bob = placed(desk, "Bob", 20, skills=(gas,))
    desk.service.preferred_skills.set([gas])
    job = desk.job()
    assert live(job).technician == bob
    reasons = {row.technician.name: row.reason for row in job.candidates.select_related("technician")}
    assert reasons == {"Bob": "12 mi, preferred skill: Gas", "Ann": "0.0 mi"}
    declines(job)
    assert live(job).technician == desk.ann, "who lacks it is still called"
    assert job.candidates.get(technician=bob).reason == "12 mi, preferred skill: Gas"
    choices = technician_picker.find_choices(Job.objects.get(pk=desk.job().pk))[0]
    assert [choice.name for choice in choices] == ["Bob", "Ann"], "manual assignment lists them in this order"


def test_weight_of_preferred_skills_is_a_policy(desk):
    gas = factories.skill(desk.organization, "gas")
    placed(desk, "Bob", 20, skills=(gas,))
    desk.service.preferred_skills.set([gas])
    DispatchPolicy.objects.create(organization=desk.organization, weight_skills=0.0)
    assert live(desk.job()).technician == desk.ann


def test_required_skills_still_exclude(desk):
    gas, roof = factories.skill(desk.organization, "gas"), factories.skill(desk.organization, "roof")
    placed(desk, "Bob", 20, skills=(gas,))
    cid = placed(desk, "Cid", 30, skills=(gas, roof))
    desk.service.required_skills.set([roof])
    desk.service.preferred_skills.set([gas])
    job = desk.job()
    assert live(job).technician == cid
    rows = {row.technician.name: (row.verdict, row.reason) for row in job.candidates.select_related("technician")}
    assert rows == {
        "Cid": ("in", "19 mi, qualified, preferred skill: Gas"),
        "Ann": ("out", "missing skill: Roof"),
        "Bob": ("out", "missing skill: Roof"),
    }


def test_preferred_skills_are_edited_in_the_api_and_the_admin(desk):
    admin = factories.admin(desk.organization, "Grace")
    api = Api(user=admin)
    gas = factories.skill(desk.organization, "gas")
    factories.skill(factories.organization(), "foreign")
    answer = api.patch(f"service-types/{desk.service.pk}/", {"preferred_skills": ["gas"]})
    assert answer.status_code == 200, answer.content
    assert (answer.json()["preferred_skills"], answer.json()["required_skills"]) == (["gas"], [])
    event = Event.objects.get(kind="service_type.changed")
    assert event.data["changes"] == {"preferred_skills": ["Gas"]}
    answer = api.patch(f"service-types/{desk.service.pk}/", {"preferred_skills": ["foreign"]})
    assert answer.status_code == 400
    browser = signed_in(admin)
    there = f"/admin/jobs/servicetype/{desk.service.pk}/change/"
    page = browser.get(there).content.decode()
    assert "Technicians who have these are called earlier." in page
    form = {"name": "Heater", "code": "water-heater", "is_active": "on", "required_skills": [gas.pk]}
    assert browser.post(there, form).status_code == 302
    service = ServiceType.objects.get()
    assert (list(service.required_skills.all()), list(service.preferred_skills.all())) == ([gas], [])


# --- the customer's preferred technician ------------------------------------------------------------------------
def test_preferred_technician_is_called_before_nearer_ones(desk):
    bob = placed(desk, "Bob", 30)
    job = desk.job(preferred_technician=bob)
    assert live(job).technician == bob
    row = job.candidates.get(rank=1)
    assert (row.technician, row.reason) == (bob, f"19 mi, {PREFERRED}")
    assert f"Dispatch offered the job to Bob (attempt 1), {PREFERRED}" in said(job)
    declines(job)
    assert live(job).technician == desk.ann, "then the normal order"
    assert "Dispatch offered the job to Ann (attempt 2)" in said(job)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"on_duty": False}, "off duty"),
        ({"is_active": False}, "no longer active"),
        ({"radius_m": 1_000}, "18 mi outside own radius"),
    ],
)
def test_ineligible_preferred_technician_changes_nothing_but_is_explained(desk, fields, reason):
    bob = placed(desk, "Bob", 30, **fields)
    job = desk.job(preferred_technician=bob)
    assert live(job).technician == desk.ann
    row = job.candidates.get(technician=bob)
    assert (row.verdict, row.reason) == ("out", f"{reason}, {PREFERRED}")
    explained = f"; {PREFERRED} Bob is not called first: {reason}"
    assert [text for text in said(job) if text.endswith(explained)], said(job)
    declines(job)
    assert (job.status, job.pending_reason) == ("pending", "exhausted")


def test_busy_preferred_technician_is_not_waited_for(desk):
    bob = placed(desk, "Bob", 30)
    first = desk.job(preferred_technician=bob)
    second = desk.job(preferred_technician=bob)
    assert (live(first).technician, live(second).technician) == (bob, desk.ann)
    assert [text for text in said(second) if "Bob is not called first: 19 mi, has another offer" in text]


def test_preferred_technician_beyond_the_limit_of_the_search_is_found(desk, monkeypatch):
    monkeypatch.setattr(ranking, "CONSIDERED", 1)
    bob = placed(desk, "Bob", 30)
    placed(desk, "Cid", 10)
    job = desk.job(preferred_technician=bob)
    assert live(job).technician == bob
    assert job.out_of_reach == {"fit": 1}, "only Cid is not listed"


def test_preferred_technician_of_a_wider_round_is_called_first_in_it(desk):
    DispatchPolicy.objects.create(organization=desk.organization, **GROWING)
    placed(desk, "Bob", 60)
    cid = placed(desk, "Cid", 70)
    job = desk.job(preferred_technician=cid)
    assert live(job).technician == desk.ann
    row = job.candidates.get(technician=cid)
    assert (row.rank, row.verdict) == (1, "out")
    assert row.reason == f"12 mi outside the radius, {PREFERRED}"
    declines(job)
    assert (live(job).technician, job.round) == (cid, 2)
    assert job.candidates.get(technician=cid).reason == f"43 mi, {PREFERRED}, within the 47 mi of round 2"
    declines(job)
    assert live(job).technician.name == "Bob"


def test_preferred_technician_who_gave_the_job_back_is_not_called_again(desk):
    bob = placed(desk, "Bob", 30)
    job = desk.job(preferred_technician=bob)
    services.assign(job.pk, bob.pk, actor=MARIA, confirm_unfit=True)
    services.cannot_make_it(job.pk, actor=MARIA)
    moves_on(job)
    assert live(job).technician == desk.ann


def test_preferred_technician_is_set_by_the_form(desk):
    api = Api(key=factories.api_key(desk.organization))
    bob = placed(desk, "Bob", 30)
    body = {**factories.form(desk.service), "preferred_technician": bob.pk}
    answer = api.post("submissions/", body)
    assert answer.status_code == 202, answer.content
    submission = Submission.objects.get(pk=answer.json()["id"])
    services.start_job(submission.pk, place=False)
    job = Job.objects.get(submission=submission)
    assert (job.preferred_technician, live(job).technician) == (bob, bob)
    assert api.get(f"submissions/{submission.pk}/").json()["preferred_technician"] == bob.pk
    shown = api.get(f"jobs/{job.pk}/").json()["preferred_technician"]
    assert (shown["id"], shown["name"]) == (bob.pk, "Bob")
    for page in (f"/board/jobs/{job.pk}/", f"/admin/jobs/job/{job.pk}/change/"):
        text = signed_in(desk.maria).get(page, headers={"HX-Request": "true"}).content.decode()
        assert "<dt>Prefers</dt>" in text
    without = api.post("submissions/", {**factories.form(desk.service), "preferred_technician": None})
    assert without.status_code == 202
    assert api.get(f"submissions/{without.json()['id']}/").json()["preferred_technician"] is None


def test_technician_of_another_organization_is_refused(desk):
    api = Api(key=factories.api_key(desk.organization))
    stranger = Desk().ann
    for wrong in (stranger.pk, 10**12, "Ann"):
        answer = api.post("submissions/", {**factories.form(desk.service), "preferred_technician": wrong})
        assert answer.status_code == 400, answer.content
        assert answer.json()["errors"][0]["field"] == "preferred_technician"
    assert not Submission.objects.exists()


def test_technician_of_another_organization_is_never_a_candidate(desk):
    """Not even if a row names them."""
    stranger = placed(Desk(), "Stranger", 1)
    job = desk.job(preferred_technician=stranger)
    assert live(job).technician == desk.ann
    assert [row.technician for row in job.candidates.all()] == [desk.ann]


def test_locked_preferred_technician_does_not_hold_back_the_form(transactional_db):
    desk = Desk()
    bob = placed(desk, "Bob", 30)
    with lock_waits.limit_lock_waits(0.2), held(bob):
        job = desk.job(preferred_technician=bob)
        assert live(job).technician == desk.ann
    assert Job.objects.get(pk=job.pk).preferred_technician == bob


def test_scheduled_form_carries_the_preference(desk):
    bob = placed(desk, "Bob", 30)
    payload = {**factories.form(desk.service), "preferred_technician": bob.pk}
    scheduled.KIND.check(desk.organization, payload)
    form = scheduled.KIND._form(desk.organization, payload)
    assert form["preferred_technician"] == bob
