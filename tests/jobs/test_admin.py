"""Jobs in the admin: seen, filtered and acted on by dispatchers, and by nobody else."""

from __future__ import annotations

import re

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from dispatch.core.models import Event
from dispatch.jobs import services
from dispatch.jobs.badges import job_badge
from dispatch.jobs.models import CustomerTextPolicy, DispatchPolicy, Job, ServiceType, Submission
from dispatch.technicians.models import Technician
from tests.harness.jobs import JOHN
from tests.jobs.test_api_jobs import Office
from tests.support import factories

pytestmark = pytest.mark.django_db


@pytest.fixture
def office() -> Office:
    return Office()


@pytest.fixture
def browser(office) -> Client:
    return signed_in(office.maria)


def signed_in(user) -> Client:
    client = Client()
    client.force_login(user, backend="django.contrib.auth.backends.ModelBackend")
    return client


def text(answer) -> str:
    """What a person reads."""
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", answer.content.decode()))


def test_list_shows_the_state_of_each_job_and_filters_failed_ones(office, browser):
    waiting = office.job(customer_name="Waiting Customer")
    Technician.objects.update(on_duty=False)
    office.job(customer_name="Failed Customer", priority=1)
    page = text(browser.get("/admin/jobs/job/"))
    assert "Waiting for a line" in page
    assert "No qualified technician nearby" in page
    assert "Emergency" in page
    failed = text(browser.get("/admin/jobs/job/?needs=failed"))
    assert "Failed Customer" in failed
    assert "Waiting Customer" not in failed
    services.pause(waiting.pk, actor=JOHN)
    assert "Waiting Customer" in text(browser.get("/admin/jobs/job/?needs=attention"))
    assert "Failed Customer" not in text(browser.get("/admin/jobs/job/?needs=paused"))


@pytest.mark.parametrize(
    ("waiting_for", "words"),
    [
        ("line", "Waiting for a line"),
        ("technician", "Waiting for a technician"),
        ("provider", "Phone provider not responding"),
        ("account", "Account refused by the phone provider"),
    ],
)
def test_badge_of_a_waiting_job_is_short(waiting_for, words):
    assert f"</i>{words}<" in job_badge(Job(status="dispatching", waiting_for=waiting_for))


def test_a_jobs_page_shows_everything_known(office, browser):
    job = office.job(notes="Ring twice", extra={"gate": "4711"}, address="200 W Washington St, Phoenix, AZ 85003")
    page = text(browser.get(f"/admin/jobs/job/{job.pk}/change/"))
    for words in (
        "Dana Whitfield",
        "Ring twice",
        "4711",
        "200 W Washington",
        "Ann",
        "John Sedlak received the form",
    ):
        assert words in page
    assert "Assign…" in page
    assert "Complete…" not in page
    partial = browser.get(f"/admin/jobs/job/{job.pk}/change/", headers={"HX-Request": "true"}).content.decode()
    assert partial.lstrip().startswith('<div class="job"')


def test_nested_answers_of_a_form_are_labels_and_values(office, browser):
    job = office.job(extra={"boiler": {"brand": "Vaillant", "codes": ["F28", "F29"]}, "is_tenant": True})
    for path in (f"/admin/jobs/job/{job.pk}/change/", f"/board/jobs/{job.pk}/"):
        page = browser.get(path, headers={"HX-Request": "true"}).content.decode()
        assert "<dt>brand</dt><dd>Vaillant</dd>" in page, path
        assert "<li>F28</li><li>F29</li>" in page
        assert "<dd>yes</dd>" in page
        assert "&#x27;" not in page


def test_html_in_a_form_is_shown_as_text(office, browser):
    job = office.job(customer_name="<script>alert(1)</script>", extra={"<b>": "<i>"})
    page = browser.get(f"/admin/jobs/job/{job.pk}/change/").content.decode()
    assert "<script>alert(1)" not in page
    assert "&lt;script&gt;alert(1)" in page
    assert "<script>alert(1)" not in browser.get("/admin/jobs/job/").content.decode()


def test_assignment_is_confirmed_with_its_consequences(office, browser):
    job = office.job()
    ask = f"/admin/jobs/job/{job.pk}/do/assign/"
    page = browser.get(ask)
    assert "Assigns the job to the technician you choose" in text(page)
    assert Job.objects.get().status == "dispatching"
    sent = {"version": job.version, "technician": office.ann.pk, "note": "closest"}
    done = browser.post(ask, sent, follow=True)
    assert "Job #" in text(done)
    assert Job.objects.get().technician == office.ann
    assert "Maria Lopez assigned the job to Ann (“closest”)" in text(done)


def test_unfit_technician_is_assigned_after_a_warning(office, browser):
    job = office.job()
    Technician.objects.update(on_duty=False)
    ask = f"/admin/jobs/job/{job.pk}/do/assign/"
    sent = {"version": job.version, "technician": office.ann.pk}
    warned = browser.post(ask, sent)
    assert (warned.status_code, "Ann: off duty." in text(warned)) == (409, True)
    assert browser.post(ask, {**sent, "confirm_unfit": "on"}).status_code == 302


def test_stale_page_names_the_change_and_allows_a_retry(office, browser):
    job = office.job()
    services.pause(job.pk, actor=JOHN)
    ask = f"/admin/jobs/job/{job.pk}/do/cancel/"
    stale = browser.post(ask, {"version": job.version, "reason": "not needed"})
    assert stale.status_code == 409
    assert re.search(r"At [\d:]+ MST on [\d-]+, John Sedlak paused the job\.", text(stale))
    now = re.search(r'name="version" value="(\d+)"', stale.content.decode())[1]
    assert int(now) == job.version + 1
    assert browser.post(ask, {"version": now, "reason": "not needed"}).status_code == 302
    assert Job.objects.get().status == "cancelled"


def test_stale_page_of_a_job_that_ended_offers_no_retry(office, browser):
    job = office.job()
    ask = f"/admin/jobs/job/{job.pk}/do/assign/"
    services.cancel(job.pk, "not needed", actor=JOHN)
    sent = {"version": job.version, "technician": office.ann.pk, "note": "Gate code 4411"}
    for page in (browser.post(ask, sent), browser.get(ask)):
        assert text(page).count("This job is canceled, so it can") == 1
        assert "confirm again" not in text(page)
        assert 'class="button primary"' not in page.content.decode()
    assert "Gate code 4411" in browser.post(ask, sent).content.decode()


@pytest.mark.parametrize("action", ["pause", "call-next", "cancel", "assign"])
def test_every_button_of_a_dispatching_job_has_its_page(office, browser, action):
    job = office.job()
    assert browser.get(f"/admin/jobs/job/{job.pk}/do/{action}/").status_code == 200
    assert browser.get(f"/admin/jobs/job/{job.pk}/do/accept/").status_code == 404


def test_pausing_and_resuming_dispatching_again_and_completing_by_buttons(office, browser):
    job = office.job()

    def press(action: str, **fields) -> None:
        version = Job.objects.get().version
        answer = browser.post(f"/admin/jobs/job/{job.pk}/do/{action}/", {"version": version, **fields})
        assert answer.status_code == 302, text(answer)

    press("pause", note="customer calls back")
    press("resume")
    press("call-next")
    press("assign", technician=office.ann.pk)
    press("cannot-make-it", note="flat tyre")
    press("cancel", reason="no longer needed")
    Technician.objects.update(on_duty=False)
    press("dispatch-again", address="20 E Main St, Mesa, AZ 85201")
    assert Job.objects.get().address == "20 E Main St, Mesa, AZ 85201"
    press("assign", technician=office.ann.pk, confirm_unfit="on")
    press("complete")
    assert Job.objects.get().status == "completed"


def test_failed_jobs_are_reassigned_one_or_many_at_a_time(office, browser):
    Technician.objects.update(on_duty=False)
    jobs = [office.job(), office.job()]
    Technician.objects.update(on_duty=True, max_open_jobs=1)
    chosen = {"action": "assign_selected", "_selected_action": [job.pk for job in jobs]}
    page = browser.post("/admin/jobs/job/", chosen)
    assert "Assign 2 jobs" in text(page)
    assert "Choose a technician." in text(browser.post("/admin/jobs/job/", {**chosen, "apply": "1"}))
    sent = {**chosen, **hidden_versions(page), "apply": "1", "technician": office.ann.pk}
    done = browser.post("/admin/jobs/job/", sent, follow=True)
    # her limit is one: the second is not given to her without asking
    assert list(Job.objects.order_by("pk").values_list("status", flat=True)).count("assigned") == 1
    assert "1 of 1 open job" in text(done)
    again = hidden_versions(browser.post("/admin/jobs/job/", chosen))
    browser.post("/admin/jobs/job/", {**sent, **again, "confirm_unfit": "on"})
    assert list(Job.objects.values_list("status", flat=True)) == ["assigned", "assigned"]


def hidden_versions(page) -> dict[str, str]:
    """The versions that the page asking for the technician carries along."""
    return dict(re.findall(r'name="(version_\d+)" value="(\d+)"', page.content.decode()))


def test_bulk_assign_reports_a_changed_job_and_assigns_the_others(office, browser):
    Technician.objects.update(on_duty=False)
    bob = factories.technician(office.organization, "Bob", on_duty=False)
    changed, other = office.job(), office.job()
    failed = "/admin/jobs/job/?needs=failed"
    chosen = {"action": "assign_selected", "_selected_action": [changed.pk, other.pk]}
    versions = hidden_versions(browser.post(failed, chosen))
    assert versions == {f"version_{job.pk}": str(job.version) for job in (changed, other)}
    services.assign(changed.pk, bob.pk, actor=JOHN, confirm_unfit=True)
    sent = {**chosen, **versions, "apply": "1", "confirm_unfit": "on"}
    # what was seen stays what was seen when the page is shown again
    assert hidden_versions(browser.post(failed, sent)) == versions
    done = text(browser.post(failed, {**sent, "technician": office.ann.pk}, follow=True))
    last = r"At [\d:]+ MST on [\d-]+, John Sedlak assigned the job to Bob\."
    assert re.search(rf"#{changed.pk}: This job has changed\. {last}", done)
    assert f"#{other.pk} was assigned to Ann." in done
    assert [Job.objects.get(pk=job.pk).technician for job in (changed, other)] == [bob, office.ann]


def test_bulk_assignment_requires_the_seen_versions(office, browser):
    job = office.job()
    sent = {"action": "assign_selected", "_selected_action": [job.pk], "apply": "1", "technician": office.ann.pk}
    done = text(browser.post("/admin/jobs/job/", sent, follow=True))
    assert f"#{job.pk} was not changed: its version is missing." in done
    assert Job.objects.get().technician is None


def test_many_are_dispatched_again(office, browser):
    Technician.objects.update(on_duty=False)
    job = office.job()
    Technician.objects.update(on_duty=True)
    chosen = {"action": "dispatch_selected_again", "_selected_action": [job.pk]}
    page = browser.post("/admin/jobs/job/", chosen)
    assert "Call technicians again for 1 job" in text(page)
    assert Job.objects.get().status == "pending", "it asks first"
    sent = {**chosen, **hidden_versions(page), "apply": "1", "note": "they are back"}
    done = browser.post("/admin/jobs/job/", sent, follow=True)
    assert f"#{job.pk}: technicians are being called." in text(done)
    assert Job.objects.get().status == "dispatching"
    assert Event.objects.get(kind="job.dispatch_again").data["note"] == "they are back"


def test_bulk_dispatch_skips_a_job_changed_meanwhile(office, browser):
    Technician.objects.update(on_duty=False)
    changed, other = office.job(), office.job()
    chosen = {"action": "dispatch_selected_again", "_selected_action": [changed.pk, other.pk]}
    versions = hidden_versions(browser.post("/admin/jobs/job/", chosen))
    services.cancel(changed.pk, "not needed", actor=JOHN)
    Technician.objects.update(on_duty=True)
    done = text(browser.post("/admin/jobs/job/", {**chosen, **versions, "apply": "1"}, follow=True))
    last = r"At [\d:]+ MST on [\d-]+, John Sedlak canceled the job: not needed\."
    assert re.search(rf"#{changed.pk}: This job has changed\. {last}", done)
    assert f"#{other.pk}: technicians are being called." in done
    assert Job.objects.get(pk=changed.pk).status == "cancelled"
    blind = text(browser.post("/admin/jobs/job/", {**chosen, "apply": "1"}, follow=True))
    assert f"#{changed.pk} was not changed: its version is missing." in blind


def test_the_list_counts_offers_for_the_rows_it_shows_and_no_others(office, browser):
    office.job()
    with CaptureQueriesContext(connection) as asked:
        page = text(browser.get("/admin/jobs/job/"))
    assert "Dana Whitfield" in page
    lists = [one["sql"] for one in asked if '"jobs_job"' in one["sql"]]
    assert not [sql for sql in lists if sql.count("GROUP BY") > sql.count("(SELECT COUNT")]
    assert len([sql for sql in lists if sql.startswith("SELECT COUNT(*)")]) == 1


def test_other_organizations_have_no_access(office):
    job = office.job()
    outsider = signed_in(factories.admin(factories.organization(), "Olaf"))
    assert f"#{job.pk}" not in text(outsider.get("/admin/jobs/job/"))
    assert outsider.get(f"/admin/jobs/job/{job.pk}/change/").status_code in (302, 404)
    for action in ("assign", "cancel", "pause"):
        sent = {"version": job.version, "reason": "x", "technician": office.ann.pk}
        assert outsider.post(f"/admin/jobs/job/{job.pk}/do/{action}/", sent).status_code == 404
    outsider.post("/admin/jobs/job/", {"action": "dispatch_selected_again", "_selected_action": [job.pk]})
    assert Job.objects.get().version == job.version
    nobody = Client().get(f"/admin/jobs/job/{job.pk}/do/assign/")
    assert (nobody.status_code, "/login/" in nobody["Location"]) == (302, True)


def test_jobs_and_submissions_cannot_be_edited_or_deleted(office, browser):
    job = office.job()
    assert browser.get("/admin/jobs/job/add/").status_code == 403
    assert browser.get(f"/admin/jobs/job/{job.pk}/delete/").status_code == 403
    submission = Submission.objects.get()
    page = browser.get(f"/admin/jobs/submission/{submission.pk}/change/")
    assert "Dana Whitfield" in text(page)
    assert 'name="customer_name"' not in page.content.decode()
    assert f"#{job.pk}" in text(browser.get("/admin/jobs/submission/"))


def test_admins_edit_policies_and_see_what_empty_fields_fall_back_to(office):
    admin = signed_in(factories.admin(office.organization, "Grace"))
    page = admin.get("/admin/jobs/dispatchpolicy/add/").content.decode()
    assert re.search(r'name="answer_timeout_s"[^>]*placeholder="300"', page)
    empty = dict.fromkeys(re.findall(r'name="((?:advance|weight)_\w+)"', page), "")
    sent = {"organization": office.organization.pk, "answer_timeout_s": 60, **empty}
    refused = admin.post("/admin/jobs/dispatchpolicy/add/", {**sent, "ring_timeout_s": 60})
    assert "must be shorter than the delay between attempts" in text(refused)
    assert admin.post("/admin/jobs/dispatchpolicy/add/", {**sent, "ring_timeout_s": 40}).status_code == 302
    policy = DispatchPolicy.objects.get()
    assert (policy.answer_timeout_s, policy.rounds, policy.advance_on_busy) == (60, None, None)
    special = factories.service_type(office.organization, "gas")
    row = DispatchPolicy.objects.create(organization=office.organization, service_type=special)
    page = admin.get(f"/admin/jobs/dispatchpolicy/{row.pk}/change/").content.decode()
    assert re.search(r'name="answer_timeout_s"[^>]*placeholder="60"', page)
    assert "60 s" in text(admin.get("/admin/jobs/dispatchpolicy/"))


def test_the_log_says_who_changed_which_policy_and_service_type(office):
    grace = factories.admin(office.organization, "Grace")
    admin, gas = signed_in(grace), factories.skill(office.organization, "gas-fitter")
    form = {"organization": office.organization.pk, "name": "Gas leak", "code": "gas", "required_skills": [gas.pk]}
    assert admin.post("/admin/jobs/servicetype/add/", {**form, "is_active": "on"}).status_code == 302
    made = ServiceType.objects.get(code="gas")
    assert list(made.required_skills.all()) == [gas]
    there = f"/admin/jobs/servicetype/{made.pk}/change/"
    for _ in range(2):  # the second time nothing changes
        assert admin.post(there, {**form, "name": "Gas", "is_active": "on"}).status_code == 302
    page = admin.get("/admin/jobs/dispatchpolicy/add/").content.decode()
    empty = dict.fromkeys(re.findall(r'name="((?:advance|weight)_\w+)"', page), "")
    sent = {"organization": office.organization.pk, "answer_timeout_s": 90, **empty}
    assert admin.post("/admin/jobs/dispatchpolicy/add/", sent).status_code == 302
    policy = DispatchPolicy.objects.get()
    admin.post(f"/admin/jobs/dispatchpolicy/{policy.pk}/delete/", {"post": "yes"})
    told = Event.objects.filter(subject_type__in=["service_type", "policy"], actor_id=grace.pk).order_by("id")
    assert [event.kind for event in told] == [
        "service_type.added", "service_type.changed", "policy.added", "policy.removed",
    ]  # fmt: skip
    assert {event.actor_label for event in told} == {"Grace"}
    assert told[0].data["changes"]["required_skills"] == [str(gas)]
    assert told[1].data["changes"] == {"name": "Gas"}
    assert told[2].data["changes"] == {"answer_timeout_s": 90}


def test_contact_phone_of_customer_texts_is_set_and_changed(office):
    admin = signed_in(factories.admin(office.organization, "Grace"))
    sent = {"organization": office.organization.pk, "contact_phone": "602 555 0100"}
    assert admin.post("/admin/jobs/customertextpolicy/add/", sent).status_code == 302
    row = CustomerTextPolicy.objects.get()
    there = f"/admin/jobs/customertextpolicy/{row.pk}/change/"
    assert admin.post(there, {**sent, "contact_phone": "602 555 0101"}).status_code == 302
    row.refresh_from_db()
    assert row.contact_phone == "+16025550101"
    events = Event.objects.filter(subject_type="customer_texts").order_by("id")
    phones = [event.data["changes"]["contact_phone"] for event in events]
    assert phones == ["+16025550100", "+16025550101"]


def test_policy_required_by_another_is_deleted_only_with_it(office):
    admin = signed_in(factories.admin(office.organization, "Grace"))
    special = factories.service_type(office.organization, "gas")
    own = DispatchPolicy.objects.create(organization=office.organization, answer_timeout_s=900)
    row = DispatchPolicy.objects.create(organization=office.organization, service_type=special, ring_timeout_s=400)
    told = admin.post(f"/admin/jobs/dispatchpolicy/{own.pk}/delete/", {"post": "yes"}, follow=True)
    assert "Ring time (400 s) must be shorter" in text(told)
    both = {"action": "delete_selected", "_selected_action": [own.pk, row.pk], "post": "yes"}
    admin.post("/admin/jobs/dispatchpolicy/", both)
    assert not DispatchPolicy.objects.exists()


def test_dispatchers_do_not_edit_policies(browser):
    assert browser.get("/admin/jobs/dispatchpolicy/add/").status_code == 403
    assert browser.get("/admin/jobs/servicetype/").status_code == 200
