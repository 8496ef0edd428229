"""The board without JavaScript: the first paint is correct, and actions take effect."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from dispatch.capacity.models import OutboundNumber
from dispatch.console.board.attention import find_attention
from dispatch.console.board.filters import NO_FILTERS
from dispatch.core import clock
from dispatch.core.events import Actor
from dispatch.core.models import Event
from dispatch.jobs import services
from dispatch.jobs.models import Candidate, Job, Offer, Submission
from dispatch.jobs.timeline import MAX_ENTRIES, load_timeline
from dispatch.technicians import services as technicians
from dispatch.technicians.models import Technician
from dispatch.telephony.models import Call
from notifications import services as notifications
from notifications.models import Claim
from notifications.services import ownership
from tests.support import factories as make
from tests.support.copies import copy_row
from tests.support.plans import explain_rows_read
from tests.support.tenants import tenant

pytestmark = pytest.mark.django_db
HTMX = {"HX-Request": "true"}
BOB = Actor("user", 99, "Bob")


class Desk:
    """An organization with a dispatcher's browser and jobs in any state."""

    def __init__(self, browser: Any) -> None:
        self.organization = make.organization()
        self.service = make.service_type(self.organization, "water-heater", name="Water heater")
        self.person = make.dispatcher(self.organization, "Dana")
        self.client = browser(self.person)

    def job(self, status: str = "dispatching", **fields: Any) -> Job:
        form = {
            "organization": self.organization,
            "customer_name": "Whitfield",
            "customer_phone": make.phone(),
            "service_type": self.service,
            "address": make.PHOENIX.address,
            "priority": fields.pop("priority", 3),
        }
        submission = Submission.objects.create(form={}, status="processed", **form)
        defaults: dict[str, Any] = {"lat": make.PHOENIX.lat, "lng": make.PHOENIX.lng, "waiting_for": "start"}
        if status == "dispatching":
            defaults["next_action_at"] = clock.now() + timedelta(seconds=30)
        if status == "pending":
            defaults |= {"pending_reason": "exhausted", "waiting_for": "person", "waiting_since": clock.now()}
        if status == "assigned":
            defaults |= {"technician": fields.get("technician") or self.technician(), "assigned_at": clock.now()}
        if status in ("completed", "cancelled"):
            defaults["ended_at"] = clock.now()
        return Job.objects.create(submission=submission, status=status, **{**form, **defaults, **fields})

    def failed_call(self, **fields: Any) -> Call:
        """Create a call that the phone provider rejected, by default just now."""
        number = OutboundNumber.objects.of(self.organization).first() or make.number(self.organization)
        given = {
            "purpose": "offer", "subject_id": Call.objects.count(), "line_slot": 1, "pool_slot": 1,
            "to_phone": make.phone(), "status": "rejected", "place_by": clock.now(), "ended_at": clock.now(),
            "requested_at": clock.now(), "error_code": "21210", **fields,
        }  # fmt: skip
        return Call.objects.create(
            organization=self.organization, account=number.account, number=number, pool=number.pool,
            from_phone=number.phone, **given,
        )  # fmt: skip

    def technician(self, name: str = "", **fields: Any) -> Any:
        return make.technician(self.organization, name, **fields)

    def see(self, path: str = "/board/", **how: Any) -> str:
        answer = self.client.get(path, **how)
        assert answer.status_code == 200, answer.content[:500]
        return answer.content.decode()

    def list_of(self, page: str, name: str) -> str:
        return page.split(f'data-list="{name}"')[1].split("</section>")[0]


@pytest.fixture
def desk(browser) -> Desk:
    return Desk(browser)


def test_empty_board_explains_what_appears_there(desk):
    page = desk.see()
    assert "All clear" in page
    assert "New requests appear here." in page
    assert "No technicians yet" in page


def test_each_job_is_in_its_column(desk):
    new, pending, assigned, done = (desk.job(one) for one in ("dispatching", "pending", "assigned", "completed"))
    ann = desk.technician("Ann")
    calling = desk.job(waiting_for="answer")
    for rank, one in enumerate((ann, desk.technician("Next Up")), 1):
        Candidate.objects.create(
            organization=desk.organization,
            job=calling,
            technician=one,
            rank=rank,
            verdict="in",
            distance_m=1,
            score=1,
        )
    Offer.objects.create(
        organization=desk.organization, job=calling, technician=ann, attempt=1,
        ringing_since=clock.now(), expires_at=clock.now() + timedelta(minutes=9, seconds=55),
    )  # fmt: skip
    desk.job("completed", ended_at=clock.now() - timedelta(days=2))
    page = desk.see()
    for name, job in {
        "new": new,
        "calling": calling,
        "assigned": assigned,
        "done": done,
        "attention": pending,
    }.items():
        found = re.findall(r'data-open="(\d+)"', desk.list_of(page, name))
        assert found == [str(job.pk)], name
    told = desk.list_of(page, "calling")
    assert "Ringing" in told
    assert "attempt 1 of 2" in told
    assert re.search(r"[789]:\d\d</time> left", told)
    assert "next: Next Up" in told
    assert "Nobody accepted" in desk.list_of(page, "attention")


@pytest.mark.parametrize(
    ("waiting_for", "badge", "words"),
    [
        ("answer", "Ringing not confirmed", "ringing not confirmed"),
        ("line", "Waiting for a line", "waiting for a line"),
    ],
)
def test_panel_says_the_same_as_the_badge_of_a_call_that_does_not_ring(desk, waiting_for, badge, words):
    job = desk.job(waiting_for=waiting_for)
    Offer.objects.create(
        organization=desk.organization, job=job, technician=desk.technician("Ann"), attempt=1,
        expires_at=clock.now() + timedelta(minutes=5),
    )  # fmt: skip
    panel = desk.see(f"/board/jobs/{job.pk}/?part=body", headers=HTMX)
    assert badge in panel
    assert re.search(r'<b class="break">Ann</b> ([^<,]+)<', panel)[1].strip() == words


def test_panel_names_the_jobs_that_may_be_duplicates_in_one_notice(desk):
    first = desk.job()
    flagged = [desk.job(duplicate_of=first, duplicate_state="possible") for _ in range(12)]
    panel = desk.see(f"/board/jobs/{first.pk}/", headers=HTMX)
    assert panel.count('class="notice late"') == 1
    assert "12 jobs may be duplicates of this one. Open one to merge it." in panel
    assert re.findall(r'id="flagged-(\d+)"', panel) == [str(job.pk) for job in flagged[:10]]
    assert "and 2 more" in panel
    Job.objects.filter(pk__in=[job.pk for job in flagged[1:]]).update(ended_at=clock.now())
    panel = desk.see(f"/board/jobs/{first.pk}/", headers=HTMX)
    assert f">Job {flagged[0].pk}</a> may be a duplicate of this one." in panel
    assert "more</span>" not in panel


def test_the_most_urgent_and_longest_waiting_come_first(desk):
    normal, emergency, newer = desk.job("pending"), desk.job("pending", priority=1), desk.job("pending")
    found = re.findall(r'data-open="(\d+)"', desk.list_of(desk.see(), "attention"))
    assert found == [str(one.pk) for one in (emergency, normal, newer)]


def test_age_counts_from_the_customers_request(desk):
    late = desk.job(next_action_at=clock.now() - timedelta(minutes=2))
    asked_at = clock.now() - timedelta(minutes=51)
    Submission.objects.filter(pk=late.submission_id).update(created_at=asked_at)
    Job.objects.filter(pk=late.pk).update(created_at=asked_at if late.submission_id is None else clock.now())
    assert "51 min" in desk.list_of(desk.see(), "attention")


def test_paused_and_late_jobs_need_attention_too(desk):
    desk.job(paused_at=clock.now(), next_action_at=None, waiting_for="person")
    desk.job(next_action_at=clock.now() - timedelta(minutes=2))
    told = desk.list_of(desk.see(), "attention")
    assert "Paused" in told
    assert "Late" in told


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("text=garcia", ["Garcia"]),
        ("text=HEATER", ["Emergency", "Garcia"]),
        ("text=boiler", []),
        ("area=Tucson", ["Garcia"]),
        ("priority=emergency", ["Emergency"]),
        ("service=water-heater", ["Emergency", "Garcia"]),
        ("service=nothing", []),
        ("text=%2B16025559911", ["Garcia"]),
        ("technician=9999999999999999999999", ["Emergency", "Garcia"]),
        ("priority=9&technician=x", ["Emergency", "Garcia"]),
    ],
)
def test_filters_are_in_the_address(desk, query, found):
    desk.job(customer_name="Garcia", customer_phone="+16025559911", address="1 Main St, Tucson, AZ 85701")
    desk.job(customer_name="Emergency", priority=1)
    page = desk.list_of(desk.see(f"/board/?{query}"), "new")
    assert len(re.findall(r"data-open=", page)) == len(found)


def test_filters_announce_hidden_items_that_need_attention(desk):
    desk.job("pending")
    told = desk.list_of(desk.see("/board/?area=Nowhere"), "attention")
    assert "<b>1</b> hidden by filters" in told


def test_clearing_the_filters_keeps_the_job_the_map_and_the_layout(desk):
    job = desk.job("pending", address="1 Main St, Tempe, AZ 85281")
    page = desk.see(f"/board/?text=elsewhere&area=Mesa&layout=list&map=1&job={job.pk}&show=all")
    links = re.findall(r'href="([^"]+)"[^>]*>Clear filters', page)
    kept = f"?layout=list&amp;map=1&amp;job={job.pk}&amp;show=all&amp;view=all"
    assert links == [kept, kept]


def test_the_technician_filter_finds_assigned_and_called_ones(desk):
    ann = desk.technician("Ann")
    mine, called, other = desk.job("assigned", technician=ann), desk.job(), desk.job("assigned")
    Offer.objects.create(
        organization=desk.organization, job=called, technician=ann, attempt=1, expires_at=clock.now()
    )
    for query in (f"technician={ann.pk}", "text=ann"):
        page = desk.see(f"/board/?{query}")
        assert re.findall(r'data-open="(\d+)"', desk.list_of(page, "assigned")) == [str(mine.pk)]
        assert re.findall(r'data-open="(\d+)"', desk.list_of(page, "calling")) == [str(called.pk)]
        assert f'data-open="{other.pk}"' not in page


def test_history_with_very_many_entries_ends_with_the_last_ones(desk):
    """A client may write any number of notes on one job, and the panel must not become slower with each."""
    job = desk.job("pending")
    url = f"/board/jobs/{job.pk}/"
    kinds = ("job.note_written", "job.note_deleted") * (MAX_ENTRIES // 2)
    Event.objects.bulk_create(
        Event(organization_id=desk.organization.pk, kind=kind, subject_type="job", subject_id=job.pk)
        for kind in ("job.created", *kinds, "job.paused")
    )
    Event.objects.bulk_create(
        Event(organization_id=desk.organization.pk, kind="job.created", subject_type="job", subject_id=10**9)
        for _ in range(10 * MAX_ENTRIES)
    )
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE core_event")
    page = desk.see(url, headers=HTMX)
    assert "Only the last 1,000 entries are shown." in page
    assert page.index("paused") < page.index("deleted a note")
    entries = page.split('<ol class="history">')[1].split("</ol>")[0]
    assert entries.count("<li") == MAX_ENTRIES
    with CaptureQueriesContext(connection) as captured:
        entries = load_timeline(job)
    assert len(entries) == MAX_ENTRIES
    assert sum(explain_rows_read(query["sql"], []) for query in captured) < 2 * MAX_ENTRIES
    Event.objects.filter(kind="job.note_deleted").delete()
    page = desk.see(url, headers=HTMX)
    assert "entries are shown" not in page
    assert "created" in page.split('<ol class="history">')[1]


def test_drawer_has_a_url_and_shows_everything(desk):
    job = desk.job("pending", notes="Beware of the dog", extra={"Gate code": "4711"})
    near = desk.technician("Ann")
    Candidate.objects.create(
        organization=desk.organization, job=job, technician=near, rank=1, verdict="out",
        reason="off duty", distance_m=1200, score=1,
    )  # fmt: skip
    for page in (desk.see(f"/board/?job={job.pk}"), desk.see(f"/board/jobs/{job.pk}/", headers=HTMX)):
        for words in ("Beware of the dog", "Gate code", "off duty", "0.7 mi", "Call technicians again", "Assign"):
            assert words in page
    assert desk.client.get(f"/board/jobs/{job.pk}/").url == f"/board/?job={job.pk}"


def test_manual_assignment_warns_first_and_then_assigns(desk):
    job, ann = desk.job("pending"), desk.technician("Ann", on_duty=False)
    asked = desk.see(f"/board/jobs/{job.pk}/act/assign/", headers=HTMX)
    assert re.search(f'value="{ann.pk}"', asked)
    assert "off duty" in asked
    form = {"version": job.version, "technician": ann.pk, "note": "She is near anyway"}
    answer = desk.client.post(f"/board/jobs/{job.pk}/act/assign/", form, headers=HTMX)
    assert answer.status_code == 409
    assert b"off duty" in answer.content
    answer = desk.client.post(f"/board/jobs/{job.pk}/act/assign/", {**form, "confirm_unfit": "on"}, headers=HTMX)
    assert answer.status_code == 200
    assert "assigned" in answer["HX-Trigger"]
    job.refresh_from_db()
    assert (job.status, job.technician) == ("assigned", ann)
    assert "She is near anyway" in answer.content.decode()


def test_conflict_names_the_change_and_asks_again(desk):
    job = desk.job("pending")
    ann, bob = desk.technician("Ann"), desk.technician("Bob")
    seen = job.version
    services.assign(job.pk, bob.pk, actor=BOB)
    form = {"version": seen, "technician": ann.pk}
    answer = desk.client.post(f"/board/jobs/{job.pk}/act/assign/", form, headers=HTMX)
    told = answer.content.decode()
    assert answer.status_code == 409
    assert "Bob assigned the job to Bob" in told
    assert "Nothing was changed" in told
    job.refresh_from_db()
    assert job.technician == bob
    assert f'name="version" value="{job.version}"' in told


def test_action_on_a_job_that_ended_meanwhile_is_not_offered_again(desk):
    job, ann = desk.job("pending"), desk.technician("Ann")
    act = f"/board/jobs/{job.pk}/act/assign/"
    state = re.search(r'hx-get="([^"]+part=state[^"]*)"', desk.see(act, headers=HTMX))[1].replace("&amp;", "&")
    assert desk.client.get(state, headers=HTMX).status_code == 204, "nothing to add while it is possible"
    services.cancel(job.pk, "customer called", actor=BOB)
    why = "This job is canceled, so it can&#x27;t be assigned. At "
    assert why in desk.see(state, headers=HTMX)
    sent = desk.client.post(
        act, {"version": job.version, "technician": ann.pk, "note": "Gate code 4411"}, headers=HTMX
    )
    page = sent.content.decode()
    assert sent.status_code == 409
    assert why in page
    assert "Bob canceled the job: customer called." in page
    assert "confirm again" not in page
    assert "Gate code 4411" in page, "what was entered is kept"
    assert re.search(r"<button[^>]+data-do[^>]* disabled>", page)
    opened = desk.see(act, headers=HTMX)
    assert why in opened
    assert 'name="note"' not in opened, "there is nothing to enter"


def test_without_javascript_an_action_ends_at_the_job(desk):
    job = desk.job()
    assert "Stops calling" in desk.see(f"/board/jobs/{job.pk}/act/pause/")
    answer = desk.client.post(f"/board/jobs/{job.pk}/act/pause/", {"version": job.version})
    assert answer.url == f"/board/?job={job.pk}"
    job.refresh_from_db()
    assert job.paused_at is not None


def test_a_claim_is_seen_by_all_and_taken_over_only_on_purpose(desk, browser):
    job = desk.job("pending")
    other = browser(make.dispatcher(desk.organization, "Kim"))
    what = {"kind": "job", "key": job.pk}
    desk.client.post("/board/claims/", {**what, "do": "claim"})
    assert "Claimed by you" in desk.see()
    assert "Claimed by Dana" in other.get("/board/").content.decode()
    answer = other.post("/board/claims/", {**what, "do": "claim"}, headers=HTMX)
    assert "Dana claimed this at" in answer["HX-Trigger"]
    other.post("/board/claims/", {**what, "do": "take_over"})
    assert Claim.objects.get().user.name == "Kim"
    other.post("/board/claims/", {**what, "do": "release"})
    assert not Claim.objects.exists()


def test_a_claim_ends_with_its_cause(desk):
    job, ann = desk.job("pending"), desk.technician("Ann")
    ownership.claim(desk.organization, "job", job.pk, user=desk.person, actor=BOB)
    services.assign(job.pk, ann.pk, actor=BOB)
    notifications.handle(list(Event.objects.order_by("id")))
    assert not Claim.objects.exists()


def test_call_problems_are_summarized(desk):
    for message in ("Not verified", "Not verified", "The number is not verified"):
        desk.failed_call(error_message=message)
    told = desk.list_of(desk.see(), "attention")
    assert "The phone provider rejects calls (error 21210)" in told
    assert "3 calls in the last hour. The number is not verified" in told
    desk.client.post("/board/claims/", {"kind": "call_error", "key": "21210", "do": "claim"})
    assert "Claimed by you" in desk.see()


def test_every_failed_call_of_the_last_hour_is_counted(desk):
    began = clock.now() - timedelta(minutes=50)
    desk.failed_call(requested_at=began, created_at=began)
    failed = desk.failed_call(status="failed", error_code="30003", purpose="lead")
    copy_row(failed, 600, {"subject_id": "1000 + n", "to_phone": "'+1602' || 7000000 + n"})
    rejected, failing = sorted(find_attention(desk.organization, NO_FILTERS).items, key=lambda item: item.key)
    assert "(error 21210)" in rejected.title
    assert (rejected.place.partition(".")[0], rejected.since) == ("1 call in the last hour", began)
    assert "(error 30003)" in failing.title
    assert failing.place.startswith("601 calls in the last hour")


def test_changes_returns_the_current_state_of_jobs(desk):
    job, gone = desk.job(), desk.job("completed", ended_at=clock.now() - timedelta(days=3))
    told = desk.client.get(f"/board/changes/?ids={job.pk},{gone.pk},x,99999999999999999999", headers=HTMX).json()
    assert [(one["id"], one["column"]) for one in told["cards"]] == [(job.pk, "new"), (gone.pk, "")]
    assert f"#{job.pk}" in told["cards"][0]["html"]
    assert told["counts"] == {"new": 1, "calling": 0, "assigned": 0, "done": 0}
    waits = desk.job("pending")
    told = desk.client.get("/board/changes/?all=1", headers=HTMX).json()
    assert told["all"]
    assert [one["id"] for one in told["attention"]] == [f"job-{waits.pk}"]
    assert "Nobody accepted" in told["attention"][0]["html"]


def test_strip_shows_the_state_of_each_technician(desk):
    ann = desk.technician("Ann")
    for _ in range(3):
        technicians.record_missed_call(ann.pk, 3)
    desk.technician("Bo", on_duty=False)
    desk.technician("Cy", open_jobs=1)
    page = desk.see()
    for words in ("Auto-paused", "Off duty", "On a job", "missed 3 calls"):
        assert words in page
    desk.client.post(f"/board/crew/{ann.pk}/back/")
    assert "Auto-paused" not in desk.see()


def test_the_map_draws_jobs_technicians_and_the_radius(desk):
    job, ann = desk.job("pending"), desk.technician("Ann <b>", at=make.TEMPE)
    desk.job("pending", lat=None, lng=None)
    Candidate.objects.create(
        organization=desk.organization, job=job, technician=ann, rank=1, verdict="in", distance_m=1, score=1
    )
    every = desk.see("/board/map/")
    assert "2 open" not in every
    assert "1 open job and 1 technician" in every
    assert "Without a position: 1 job." in every
    assert "Ann &lt;b&gt;" in every
    assert 'class="radius"' in desk.see(f"/board/map/?job={job.pk}")
    assert "Tempe" in every or "Phoenix" in every


def test_two_thousand_open_jobs_stay_a_small_page(desk, django_assert_max_num_queries):
    Submission.objects.bulk_create(
        Submission(
            organization=desk.organization, form={}, status="processed", customer_name="N" * 80,
            customer_phone="+16025550123", service_type=desk.service, address="A" * 200,
        )
        for _ in range(2000)
    )  # fmt: skip
    Job.objects.bulk_create(
        Job(
            organization=desk.organization, submission=one, service_type=desk.service,
            status="pending" if n % 2 else "dispatching", pending_reason="exhausted" if n % 2 else "",
            next_action_at=None if n % 2 else clock.now() + timedelta(hours=1), customer_name="N" * 80,
            customer_phone="+16025550123", address="A" * 200, lat=33.4, lng=-112.0,
        )
        for n, one in enumerate(Submission.objects.all())
    )  # fmt: skip
    with django_assert_max_num_queries(40):
        page = desk.see()
    assert len(page.encode()) < 300_000
    assert "(960 more)" in page
    (address,) = re.findall(r'href="(/board/columns/new/[^"]+)"', page)
    more = desk.see(address.replace("&amp;", "&"), headers=HTMX)
    assert len(re.findall("data-open=", more)) == 40


def test_nothing_of_another_organization_is_seen_or_done(desk):
    theirs = tenant("Bravotown")
    job = theirs.row(Job)
    theirs.row(Candidate)
    assert "Bravotown" not in desk.see(f"/board/?job={job.pk}&map=1")
    assert desk.client.get(f"/board/jobs/{job.pk}/", headers=HTMX).status_code == 404
    assert desk.client.get(f"/board/jobs/{job.pk}/act/assign/", headers=HTMX).status_code == 404
    assert desk.client.post(f"/board/jobs/{job.pk}/act/cancel/", {"version": 1, "reason": "x"}).status_code == 404
    assert desk.client.post("/board/claims/", {"kind": "job", "key": job.pk, "do": "claim"}).status_code == 404
    technician = theirs.row(Technician)
    assert desk.client.post(f"/board/crew/{technician.pk}/back/").status_code == 404
    assert "Bravotown" not in desk.see(f"/board/?technician={technician.pk}")
    told = desk.client.get(f"/board/changes/?ids={job.pk}", headers=HTMX).json()
    assert told["cards"] == [{"id": job.pk, "column": ""}]
    assert "Bravotown" not in desk.see("/board/map/")
    mine = desk.job("pending")
    form = {"version": mine.version, "technician": technician.pk, "confirm_unfit": "on"}
    assert desk.client.post(f"/board/jobs/{mine.pk}/act/assign/", form, headers=HTMX).status_code == 422
