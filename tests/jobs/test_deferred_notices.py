"""News about a job that can wait reaches its technician after the quiet hours, unless the job begins before."""

from __future__ import annotations

from datetime import time

import pytest
from django.test import Client
from django.urls import reverse

from dispatch.core import clock
from dispatch.core.models import Event
from dispatch.jobs import services, timeline
from dispatch.jobs.models import DispatchPolicy, Job, TechnicianNotice
from dispatch.jobs.rules.notices import combine_news
from dispatch.jobs.services import Correction
from dispatch.technicians.models import Technician
from dispatch.telephony.models import Call, OptOut, Text
from tests.api.client import Api
from tests.jobs.test_quiet_hours import PHOENIX, at, travel_to
from tests.jobs.test_threads import MARIA, Desk
from tests.support import factories

EVENING, NIGHT, MORNING = (2027, 3, 2, 18), (2027, 3, 3, 3), (2027, 3, 3, 7)


def desk_with_quiet_hours() -> Desk:
    """A desk in the evening, before the quiet hours of its normal jobs."""
    made = Desk()
    DispatchPolicy.objects.create(
        organization=made.organization, quiet_for="normal", quiet_from=time(22), quiet_until=time(7)
    )
    travel_to(at(PHOENIX, *EVENING))
    return made


@pytest.fixture
def desk(db) -> Desk:
    return desk_with_quiet_hours()


def given_to_ann(desk: Desk, *, when: tuple[int, ...] = NIGHT, **fields) -> Job:
    """A job that Ann has and knows of since the evening, at the time `when`."""
    job = desk.assigned(**fields)
    TechnicianNotice.objects.update(status="reached", next_action_at=None)
    desk.sent()
    travel_to(at(PHOENIX, *when))
    return job


def notice() -> TechnicianNotice:
    return TechnicianNotice.objects.latest("pk")


def news_texts() -> list[str]:
    return list(Text.objects.filter(purpose="job_news").order_by("pk").values_list("body", flat=True))


def news_calls() -> int:
    return Call.objects.filter(purpose="job_news").count()


def events_of(job: Job) -> list[str]:
    about = Event.objects.filter(subject_type="job", subject_id=job.pk).order_by("id")
    return [kind.removeprefix("job.") for kind in about.values_list("kind", flat=True)]


def advance_at(*when: int) -> None:
    travel_to(at(PHOENIX, *when))
    services.advance_due_notices()


def test_news_of_a_normal_job_waits_for_the_end_of_quiet_hours(desk):
    job = given_to_ann(desk)
    services.cancel(job.pk, "the customer fixed it", actor=MARIA)
    services.advance_due_notices()
    assert (notice().status, notice().deferred_until) == ("sending", at(PHOENIX, *MORNING))
    assert (news_texts(), news_calls()) == ([], 0)
    said = [entry.text for entry in timeline.load_timeline(job)]
    assert "Dispatch will notify Ann at 7:00, when the quiet hours end, that the job was canceled" in said
    advance_at(2027, 3, 3, 6, 59)
    assert (news_texts(), news_calls(), events_of(job).count("notice_deferred")) == ([], 0, 1)
    advance_at(*MORNING)
    (body,) = news_texts()
    assert "your job was canceled" in body
    assert notice().deferred_until is None


def test_panel_and_job_page_show_who_is_notified_when(desk):
    job = given_to_ann(desk)
    services.cancel(job.pk, "the customer fixed it", actor=MARIA)
    says = "Ann will be notified at 7:00, when the quiet hours end, that the job was canceled."
    client = Client()
    client.force_login(desk.maria, backend="django.contrib.auth.backends.ModelBackend")
    panel = client.get(reverse("console:job", args=[job.pk]), headers={"HX-Request": "true"})
    assert says in panel.content.decode()
    assert says in client.get(reverse("admin:jobs_job_change", args=[job.pk])).content.decode()


@pytest.mark.parametrize("has_texts", [True, False])
def test_alert_about_a_deferred_notice_counts_from_the_end_of_quiet_hours(desk, has_texts):
    job = given_to_ann(desk)
    if not has_texts:
        OptOut.objects.create(organization=desk.organization, phone=desk.ann.phone)
    services.cancel(job.pk, "the customer fixed it", actor=MARIA)
    advance_at(2027, 3, 3, 3, 6)
    assert "technician_unreached" not in events_of(job)
    advance_at(*MORNING)
    services.advance_due_notices()
    assert (len(news_texts()), news_calls()) == ((1, 0) if has_texts else (0, 1))
    advance_at(2027, 3, 3, 7, 4)
    assert "technician_unreached" not in events_of(job)
    advance_at(2027, 3, 3, 7, 6)
    assert events_of(job)[-1] == "technician_unreached"


@pytest.mark.parametrize(
    ("priority", "quiet_for", "waits"),
    [(1, "urgent", False), (2, "normal", False), (2, "urgent", True), (3, "urgent", True), (3, "off", False)],
)
def test_policy_and_priority_decide_which_news_wait(desk, priority, quiet_for, waits):
    DispatchPolicy.objects.update(quiet_for=quiet_for)
    job = given_to_ann(desk, priority=priority)
    services.cancel(job.pk, "the customer fixed it", actor=MARIA)
    assert (len(news_texts()) == 0) == waits
    assert (notice().deferred_until is not None) == waits


@pytest.mark.parametrize("known_by", ["start target", "on the way", "eta", "started"])
def test_news_of_a_job_that_begins_before_the_hours_open_are_sent_at_once(desk, known_by):
    if known_by == "start target":
        DispatchPolicy.objects.update(start_within_s=10 * 3600)
    job = given_to_ann(desk)
    moment = {"on the way": "on_the_way_at", "started": "started_at", "eta": "eta_at"}.get(known_by)
    if moment:
        when = at(PHOENIX, 2027, 3, 3, 6) if known_by == "eta" else clock.now()
        Job.objects.filter(pk=job.pk).update(**{moment: when})
    services.correct(job.pk, actor=MARIA, correction=Correction(), customer_phone="+16025550199")
    assert ("your job has changed" in news_texts()[0], notice().deferred_until) == (True, None)


def test_start_after_the_hours_open_lets_the_news_wait(desk):
    DispatchPolicy.objects.update(start_within_s=14 * 3600)
    job = given_to_ann(desk)
    services.correct(job.pk, actor=MARIA, correction=Correction(), customer_phone="+16025550199")
    assert (news_texts(), notice().deferred_until) == ([], at(PHOENIX, *MORNING))


def test_manual_assignment_at_night_texts_the_address_in_the_morning(desk):
    travel_to(at(PHOENIX, *NIGHT))
    desk.assigned()
    assert not Text.objects.exists()
    advance_at(*MORNING)
    body = Text.objects.get(purpose="job").body
    assert "you have a new job" in body.lower()
    assert notice().text_id == Text.objects.get(purpose="job").pk


def test_call_after_the_text_waits_if_quiet_hours_have_begun(desk):
    job = given_to_ann(desk, when=(2027, 3, 3, 21, 59))
    services.cancel(job.pk, "the customer fixed it", actor=MARIA)
    Text.objects.filter(purpose="job_news").update(status="undelivered", ended_at=clock.now())
    advance_at(2027, 3, 3, 22, 1)
    assert (notice().deferred_until, news_calls()) == (at(PHOENIX, 2027, 3, 4, 7), 0)
    advance_at(2027, 3, 3, 22, 10)
    assert "technician_unreached" not in events_of(job)
    advance_at(2027, 3, 4, 7)
    services.advance_due_notices()
    assert (news_calls(), len(news_texts())) == (1, 1)


def test_assignment_that_ends_in_the_same_night_is_never_sent(desk):
    travel_to(at(PHOENIX, *NIGHT))
    job = desk.assigned()
    services.cancel(job.pk, "a mistake", actor=MARIA)
    assert set(TechnicianNotice.objects.values_list("news", "status")) == {("assigned", "superseded")}
    said = [entry.text for entry in timeline.load_timeline(job)]
    assert (
        "Dispatch no longer needs to notify Ann after the quiet hours that the job was assigned to them "
        "(the job was canceled)"
    ) in said
    advance_at(*MORNING)
    assert (Text.objects.count(), news_calls()) == (0, 0)


def test_technician_who_regains_the_job_the_same_night_learns_of_the_change(desk):
    bob = factories.technician(desk.organization, "Bob", max_open_jobs=5)
    job = given_to_ann(desk)
    services.assign(job.pk, bob.pk, actor=MARIA, confirm_unfit=True)
    services.assign(job.pk, desk.ann.pk, actor=MARIA, confirm_unfit=True)
    left = TechnicianNotice.objects.filter(status="sending").values_list("technician__name", "news")
    assert list(left) == [("Ann", "changed")]
    services.cancel(job.pk, "the customer fixed it", actor=MARIA)
    advance_at(*MORNING)
    (body,) = news_texts()
    assert "your job was canceled" in body


def test_technician_who_reported_on_a_job_learns_of_its_end(desk):
    travel_to(at(PHOENIX, *NIGHT))
    job = desk.assigned()
    services.report_on_the_way(job.pk, actor=MARIA)
    services.cancel(job.pk, "the customer fixed it", actor=MARIA)
    (body,) = news_texts()
    assert "your job was canceled" in body


@pytest.mark.parametrize("report", [services.report_on_the_way, services.complete])
def test_notice_that_became_pointless_is_dropped_with_an_event(desk, report):
    travel_to(at(PHOENIX, *NIGHT))
    job = desk.assigned()
    report(job.pk, actor=MARIA)
    services.advance_due_notices()
    assert (notice().status, events_of(job)[-1]) == ("superseded", "notice_dropped")
    advance_at(*MORNING)
    assert (Text.objects.count(), news_calls()) == (0, 0)


def end_with_the_policy(job: Job, desk: Desk) -> None:
    api = Api(user=factories.admin(desk.organization))
    answer = api.patch(f"policies/{DispatchPolicy.objects.get().pk}/", {"quiet_for": "off"})
    assert answer.status_code == 200, answer.content


def end_with_the_priority(job: Job, desk: Desk) -> None:
    services.correct(job.pk, actor=MARIA, correction=Correction(), priority=1)


def end_with_the_start(job: Job, desk: Desk) -> None:
    services.mark_started(job.pk, actor=MARIA)


@pytest.mark.parametrize("end", [end_with_the_policy, end_with_the_priority, end_with_the_start])
def test_deferred_notice_is_sent_when_it_no_longer_may_wait(desk, end):
    job = given_to_ann(desk)
    services.correct(job.pk, actor=MARIA, correction=Correction(), customer_phone="+16025550199")
    assert news_texts() == []
    end(job, desk)
    services.advance_due_notices()
    (body,) = news_texts()
    assert "your job has changed" in body


def test_other_quiet_hours_move_the_notice(desk):
    job = given_to_ann(desk)
    services.cancel(job.pk, "the customer fixed it", actor=MARIA)
    api = Api(user=factories.admin(desk.organization))
    api.patch(f"policies/{DispatchPolicy.objects.get().pk}/", {"quiet_until": "08:30"})
    services.advance_due_notices()
    assert notice().deferred_until == at(PHOENIX, 2027, 3, 3, 8, 30)
    words = (
        Event.objects.filter(kind="job.notice_deferred").order_by("id").values_list("data__until_words", flat=True)
    )
    assert list(words) == ["7:00", "8:30"]


def test_dispatcher_who_informs_the_technician_ends_the_deferred_notice(desk):
    job = given_to_ann(desk)
    services.cancel(job.pk, "the customer fixed it", actor=MARIA)
    assert "technician_told" in desk.api.get(f"jobs/{job.pk}/").json()["actions"]
    services.mark_technician_told(job.pk, actor=MARIA)
    assert (notice().status, notice().reached_by) == ("reached", "dispatcher")
    advance_at(*MORNING)
    assert (news_texts(), news_calls()) == ([], 0)


def test_job_that_returns_in_the_same_night_has_changed(desk):
    job = given_to_ann(desk)
    services.cancel(job.pk, "a mistake", actor=MARIA)
    services.dispatch_again(job.pk, actor=MARIA)
    services.assign(job.pk, Technician.objects.get().pk, actor=MARIA, confirm_unfit=True)
    left = TechnicianNotice.objects.filter(status="sending").values_list("news", flat=True)
    assert list(left) == ["changed"]


@pytest.mark.parametrize(
    ("unsent", "news", "expected"),
    [
        ("assigned", "cancelled", None),
        ("reopened", "reassigned", None),
        ("assigned", "changed", "assigned"),
        ("reopened", "changed", "reopened"),
        ("reassigned", "assigned", "changed"),
        ("cancelled", "reopened", "changed"),
        ("changed", "cancelled", "cancelled"),
        ("changed", "changed", "changed"),
        ("reassigned", "cancelled", "cancelled"),
    ],
)
def test_unsent_news_combine(unsent, news, expected):
    assert combine_news(unsent, news) == expected


def test_evening_is_not_quiet(desk):
    job = given_to_ann(desk, when=EVENING)
    services.cancel(job.pk, "the customer fixed it", actor=MARIA)
    assert len(news_texts()) == 1
