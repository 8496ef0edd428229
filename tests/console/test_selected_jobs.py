"""Several jobs are repaired at once, after a burst."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from dispatch.core.models import Event
from dispatch.jobs import services
from dispatch.jobs.models import Job
from notifications.models import Claim
from tests.console.test_board import BOB, HTMX, Desk
from tests.core.threads import Elsewhere
from tests.jobs.test_locked_technician import impatient  # noqa: F401
from tests.support import factories as make
from tests.support.row_locks import held

pytestmark = pytest.mark.django_db
SELECTED = "/board/selected/"


@pytest.fixture
def desk(browser: Any) -> Desk:
    return Desk(browser)


def ask(desk: Desk, do: str, *jobs: Job) -> list[str]:
    """Send the selection, and return the jobs with their versions that the question names."""
    answer = desk.client.post(SELECTED, {"do": do, "job": [job.pk for job in jobs]}, headers=HTMX)
    assert answer.status_code == 200
    return re.findall(r'name="job" value="(\d+:\d+)"', answer.content.decode())


def confirm(desk: Desk, do: str, chosen: list[str], **fields: Any) -> Any:
    return desk.client.post(SELECTED, {"do": do, "job": chosen, "confirmed": "1", **fields}, headers=HTMX)


def status(job: Job) -> str:
    return Job.objects.get(pk=job.pk).status


def test_technicians_are_called_again_for_all_selected_jobs(desk):
    desk.technician("Carla", max_open_jobs=9)
    jobs = [desk.job("pending") for _ in range(3)]
    chosen = ask(desk, "dispatch-again", *jobs)
    assert [entry.partition(":")[0] for entry in chosen] == [str(job.pk) for job in jobs]
    assert {status(job) for job in jobs} == {"pending"}, "the question changes nothing"
    answer = confirm(desk, "dispatch-again", chosen)
    assert "Calling technicians again for 3 jobs." in answer["HX-Trigger"]
    assert json.loads(answer["HX-Trigger"])["dispatch:selected"] == {"done": [job.pk for job in jobs]}
    assert {status(job) for job in jobs} == {"dispatching"}
    assert set(Event.objects.filter(kind="job.dispatch_again").values_list("actor_label", flat=True)) == {"Dana"}


def test_a_job_that_changed_after_the_question_is_left_alone_and_named(desk):
    desk.technician("Carla", max_open_jobs=9)
    changed, other = desk.job("pending"), desk.job("pending")
    chosen = ask(desk, "cancel", changed, other)
    services.correct(changed.pk, correction=services.Correction(), priority=1, actor=BOB)
    answer = confirm(desk, "cancel", chosen, reason="Storm is over")
    page = answer.content.decode()
    assert (status(changed), status(other)) == ("pending", "cancelled")
    assert json.loads(answer["HX-Trigger"])["dispatch:selected"]["done"] == [other.pk], "the other stays selected"
    assert "Canceled 1 job." in page
    assert f'data-open="{changed.pk}"' in page
    assert "Bob" in page


@pytest.mark.django_db(transaction=True)
def test_a_locked_job_is_named_and_the_others_are_changed(desk, impatient):  # noqa: F811
    locked, other = desk.job("pending"), desk.job("pending")
    chosen = ask(desk, "cancel", locked, other)
    with held(locked):
        page = confirm(desk, "cancel", chosen, reason="Storm is over").content.decode()
    assert "Someone else is changing this job" in page
    assert (status(locked), status(other)) == ("pending", "cancelled")


@pytest.mark.django_db(transaction=True)
def test_a_job_that_is_deleted_meanwhile_is_named_and_the_others_are_changed(desk):
    first, deleted, last = jobs = [desk.job("pending") for _ in range(3)]
    chosen = ask(desk, "cancel", *jobs)
    answers: list[Any] = []
    with held(first):
        canceling = Elsewhere(lambda: answers.append(confirm(desk, "cancel", chosen, reason="Storm is over")))
        canceling.wait_for_lock()
        Job.objects.filter(pk=deleted.pk).delete()
    canceling.finish()
    assert "This job no longer exists" in answers[0].content.decode()
    assert (status(first), status(last)) == ("cancelled", "cancelled")


def test_jobs_that_are_assigned_or_deleted_after_the_question_are_named(desk):
    carla = desk.technician("Carla", max_open_jobs=9)
    assigned, deleted, other = jobs = [desk.job("pending") for _ in range(3)]
    chosen = ask(desk, "dispatch-again", *jobs)
    services.assign(assigned.pk, carla.pk, actor=BOB, confirm_unfit=True)
    gone = deleted.pk
    deleted.delete()
    page = confirm(desk, "dispatch-again", chosen).content.decode()
    assert "Calling technicians again for 1 job." in page
    assert re.findall(r'data-open="(\d+)"', page) == [str(assigned.pk), str(gone)]
    assert re.search(r"This job has changed\. At [\d:]+ MST on [\d-]+, Bob assigned the job to Carla", page)
    assert "This job no longer exists." in page
    assert (status(assigned), status(other)) == ("assigned", "dispatching")


def test_jobs_in_other_states_and_without_a_position_are_not_included(desk):
    waiting, assigned = desk.job("pending"), desk.job("assigned")
    unknown = desk.job("pending", lat=None, lng=None)
    jobs = [waiting, assigned, unknown]
    answer = desk.client.post(
        SELECTED, {"do": "dispatch-again", "job": [job.pk for job in jobs]}, headers=HTMX
    ).content.decode()
    assert re.findall(r'name="job" value="(\d+):', answer) == [str(waiting.pk)]
    assert "(assigned)" in answer
    assert "(address not found)" in answer
    forced = [f"{job.pk}:{job.version}" for job in jobs[1:]]
    page = confirm(desk, "dispatch-again", forced).content.decode()
    assert "Nothing was changed." in page
    assert re.findall(r'data-open="(\d+)"[^/]*/a> ([^<]+)', page) == [
        (str(assigned.pk), "assigned"), (str(unknown.pk), "address not found"),
    ]  # fmt: skip
    assert status(assigned) == "assigned"


def test_canceling_needs_a_reason(desk):
    job = desk.job("pending")
    answer = confirm(desk, "cancel", ask(desk, "cancel", job))
    assert answer.status_code == 422
    assert "This field is required." in answer.content.decode()
    assert status(job) == "pending"


def test_selected_jobs_are_claimed_and_a_colleague_s_claim_stands(desk, browser):
    mine, theirs = desk.job("pending"), desk.job("pending")
    kim = make.dispatcher(desk.organization, "Kim")
    browser(kim).post("/board/claims/", {"kind": "job", "key": theirs.pk, "do": "claim"})
    answer = desk.client.post(SELECTED, {"do": "claim", "job": [mine.pk, theirs.pk]}, headers=HTMX)
    assert answer.status_code == 204
    assert "Claimed 1 job." in answer["HX-Trigger"]
    assert "Kim" in answer["HX-Trigger"]
    assert dict(Claim.objects.values_list("subject_id", "user__name")) == {mine.pk: "Dana", theirs.pk: "Kim"}


def test_other_organizations_jobs_are_not_touched(desk, browser):
    other = Desk(browser)
    job = other.job("pending")
    assert ask(desk, "cancel", job) == []
    confirm(desk, "cancel", [f"{job.pk}:{job.version}"], reason="Not ours")
    desk.client.post(SELECTED, {"do": "claim", "job": job.pk}, headers=HTMX)
    assert status(job) == "pending"
    assert not Claim.objects.exists()


@pytest.mark.parametrize("sent", [{}, {"do": "explode"}, {"do": "assign", "job": "1"}])
def test_an_unknown_action_is_not_found(desk, sent):
    assert desk.client.post(SELECTED, sent, headers=HTMX).status_code == 404


@pytest.mark.parametrize("job", ["", "x", "-1", "9" * 30, "1:2:3", ":", "\u0661"])
def test_a_broken_selection_selects_nothing(desk, job):
    assert ask(desk, "cancel") == []
    answer = desk.client.post(SELECTED, {"do": "cancel", "job": job}, headers=HTMX)
    assert answer.status_code == 200
    assert "None of the selected jobs" in answer.content.decode()


def test_at_most_fifty_jobs_are_changed_in_one_request(desk, django_assert_max_num_queries):
    jobs = [desk.job("pending") for _ in range(52)]
    with django_assert_max_num_queries(25):
        answer = desk.client.post(SELECTED, {"do": "cancel", "job": [job.pk for job in jobs]}, headers=HTMX)
    page = answer.content.decode()
    assert page.count('name="job"') == 50
    assert "At most 50 jobs at once: 2 more stay selected" in page


def test_the_question_names_the_technician_of_a_job_that_was_accepted_meanwhile(desk):
    job = desk.job("assigned", technician=desk.technician("Carla"))
    page = desk.client.post(SELECTED, {"do": "cancel", "job": job.pk}, headers=HTMX).content.decode()
    assert re.search("Assigned: <bdi>Carla</bdi>", page)


def test_without_javascript_the_question_is_a_page(desk):
    job = desk.job("pending")
    page = desk.client.post(SELECTED, {"do": "cancel", "job": job.pk})
    assert "<title>Selected jobs" in page.content.decode()
    assert f"{job.pk}:{job.version}" in page.content.decode()
