"""Each round searches a wider radius if the policy says so, and the job goes on until the last round."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from django.conf import settings
from django.db import OperationalError
from django.test import Client
from hypothesis import given
from hypothesis import strategies as st

from dispatch.capacity.models import DispatchPool, OutboundNumber
from dispatch.console.board import technician_picker
from dispatch.console.board.map import build_map
from dispatch.core import clock
from dispatch.jobs import rules, services, timeline
from dispatch.jobs.models import DispatchPolicy, Job, Offer
from dispatch.jobs.rules import CandidateRow, CascadePolicy, OfferRow
from dispatch.jobs.services import AnswerChannel
from dispatch.technicians.models import Technician
from tests.api.client import Api
from tests.harness.jobs import KM, Floor
from tests.jobs.test_threads import MARIA, Desk
from tests.support import factories
from tests.support.row_locks import held

BASE = CascadePolicy(**settings.DISPATCH_POLICY_DEFAULTS)
GROWING = {"rounds": 3, "radius_m": 50_000, "radius_growth": 50}
WIDENING = replace(BASE, **GROWING)


# --- the rules --------------------------------------------------------------------------------------------------
def test_each_round_widens_the_radius_of_the_round_before():
    assert [WIDENING.radius_in_round(nth) for nth in (1, 2, 3)] == [50_000, 75_000, 112_500]
    assert [WIDENING.widens_after(nth) for nth in (1, 2, 3)] == [True, True, False]
    assert [WIDENING.first_round_within(far) for far in (50_000, 50_001, 112_500, 112_501)] == [1, 2, 3, 0]


def test_radius_stops_at_its_limit():
    limited = replace(WIDENING, max_radius_m=60_000)
    assert [limited.radius_in_round(nth) for nth in (1, 2, 3)] == [50_000, 60_000, 60_000]
    assert [limited.widens_after(nth) for nth in (1, 2)] == [True, False]


def test_without_growth_all_rounds_search_the_same_radius():
    same = replace(BASE, rounds=3)
    assert same.radius_growth == 0, "the default is today's behavior"
    assert {same.radius_in_round(nth) for nth in (1, 2, 3)} == {same.radius_m}
    assert not same.widens_after(1)
    step = rules.next_step([], [], policy=same, round_=1, first_round=1)
    assert step.kind == "exhausted"


def test_limit_below_the_radius_is_a_contradiction():
    wrong = replace(WIDENING, max_radius_m=40_000)
    assert "max_radius_m" in rules.policy_problems(wrong)
    assert rules.policy_problems(replace(wrong, radius_growth=0)) == {}


def test_no_wider_round_for_a_full_list():
    """Nobody new could be called, so the search would be pointless."""
    full = replace(WIDENING, max_candidates=1)
    tried = [OfferRow(1, 1, "declined")]
    assert rules.next_step([CandidateRow(1, 1, "in")], tried, policy=full, round_=1, first_round=1).kind == (
        "exhausted"
    )


@given(
    st.lists(st.integers(0, 130_000), max_size=10),
    st.integers(1, 12),
    st.lists(st.sampled_from(["declined", "no_answer", "bad_number", "busy"]), min_size=1, max_size=6),
    st.integers(1, 4),
    st.integers(0, 100),
)
def test_every_widening_cascade_ends_and_reaches_everybody_in_range(distances, most, codes, rounds, growth):
    """Plays a whole cascade in which nobody accepts, and the search finds who is within the radius."""
    policy = replace(BASE, rounds=rounds, radius_growth=growth, max_candidates=most)
    candidates: list[CandidateRow] = []
    offers: list[OfferRow] = []

    def search(nth: int) -> None:
        known = {row.technician_id for row in candidates}
        reach = policy.radius_in_round(nth)
        near = [who for who, far in enumerate(distances) if far <= reach and who not in known]
        candidates.extend(CandidateRow(who, len(candidates) + n, "in") for n, who in enumerate(near, 1))

    round_ = 5  # a job that was dispatched before
    search(1)
    for _ in range(200):
        step = rules.next_step(candidates, offers, policy=policy, round_=round_, first_round=5)
        if step.kind == "exhausted":
            break
        if step.kind == "round":
            round_ += 1
            search(round_ - 4)
        else:
            assert step.technician_id is not None
            assert distances[step.technician_id] <= policy.radius_in_round(round_ - 4)
            offers.append(OfferRow(step.technician_id, round_, codes[len(offers) % len(codes)]))
    else:
        pytest.fail("the cascade never ended")
    assert round_ <= 4 + rounds
    asked = [(offer.technician_id, offer.round) for offer in offers]
    assert len(asked) == len(set(asked))
    final = [offer.technician_id for offer in offers if offer.code in ("declined", "bad_number")]
    assert len(final) == len(set(final)), "who declined was asked again"
    in_range = [far for far in distances if far <= policy.radius_in_round(rounds)]
    assert len({who for who, _ in asked}) == min(len(in_range), most)


# --- the cascade ------------------------------------------------------------------------------------------------
@pytest.fixture
def desk(db: Any) -> Desk:
    """An organization whose technicians are placed by each test, and whose radius widens."""
    made = Desk()
    OutboundNumber.objects.update(max_channels=50)  # lines are released at a commit, which these tests don't have
    DispatchPool.objects.update(concurrency=50)
    Technician.objects.update(is_active=False)
    DispatchPolicy.objects.create(organization=made.organization, **GROWING)
    return made


def placed(desk: Desk | Floor, name: str, km: float, **fields: Any) -> Technician:
    at = factories.PHOENIX._replace(lat=factories.PHOENIX.lat + km * KM)
    return factories.technician(desk.organization, name, at=at, **fields)


def said(job: Job) -> list[str]:
    return [entry.text for entry in timeline.load_timeline(job)]


def live(job: Job) -> Offer:
    return Offer.objects.select_related("technician").get(job=job, status="pending")


def moves_on(job: Job) -> Job:
    job.refresh_from_db()
    services.offer_next(job.pk, job.step_token, place=False)
    job.refresh_from_db()
    return job


def declines(job: Job) -> Job:
    services.answer_offer(live(job).pk, None, "2", by=AnswerChannel.TEXT)
    return moves_on(job)


def misses(job: Job) -> Job:
    clock.travel((live(job).expires_at - clock.now()).total_seconds() + 1)
    job.refresh_from_db()
    services.expire_offer(job.pk, job.step_token, place=False)
    job.refresh_from_db()
    return job


def rounds_of(job: Job) -> list[tuple[str, int]]:
    return list(Offer.objects.filter(job=job).order_by("attempt").values_list("technician__name", "round"))


def test_job_with_nobody_near_goes_on_to_the_wider_round(desk):
    placed(desk, "Bob", 60)
    job = desk.job()
    assert (job.status, job.round) == ("dispatching", 2)
    assert live(job).technician.name == "Bob"
    (row,) = job.candidates.all()
    assert (row.verdict, row.reason) == ("in", "37 mi, within the 47 mi of round 2")
    assert "Dispatch found 0 eligible technicians of 0 within 31 mi" in said(job)
    assert "Dispatch started round 2 of 3 within 47 mi: 1 more eligible technician" in said(job)
    assert not [text for text in said(job) if "handed the job" in text]


def test_job_is_pending_only_after_the_last_round(desk):
    placed(desk, "Tucson", 170)
    job = desk.job()
    assert (job.status, job.pending_reason, job.round) == ("pending", "nobody_near", 3)
    assert not Offer.objects.exists()
    assert "Dispatch started round 3 of 3 within 70 mi: 0 more eligible technicians" in said(job)
    assert "Dispatch handed the job to dispatchers: No qualified technician nearby (within 70 mi)" in said(job)


def test_without_growth_nobody_near_is_pending_at_once(desk):
    DispatchPolicy.objects.update(radius_growth=None)
    placed(desk, "Bob", 60)
    job = desk.job()
    assert (job.status, job.pending_reason, job.round) == ("pending", "nobody_near", 1)


def test_earlier_candidates_stay_and_who_declined_is_not_asked_again(desk):
    for name, km in (("Ann", 1), ("Ben", 2), ("Cid", 60)):
        placed(desk, name, km)
    job = desk.job()
    declines(job)
    for _ in range(3):
        misses(job)
    assert rounds_of(job) == [("Ann", 1), ("Ben", 1), ("Ben", 2), ("Cid", 2), ("Ben", 3)]
    assert [(row.rank, row.technician.name) for row in job.candidates.select_related("technician")] == [
        (1, "Ann"), (2, "Ben"), (3, "Cid"),
    ]  # fmt: skip
    misses(job)
    misses(job)
    assert (job.status, job.pending_reason) == ("pending", "exhausted")


def test_technician_who_came_on_duty_is_found_by_the_wider_search(desk):
    ann = placed(desk, "Ann", 1, on_duty=False)
    placed(desk, "Ben", 2)
    job = desk.job()
    assert job.candidates.get(technician=ann).verdict == "out"
    Technician.objects.filter(pk=ann.pk).update(on_duty=True)
    declines(job)
    assert live(job).technician == ann
    assert job.candidates.get(technician=ann).reason == "0.6 mi"


def test_limit_of_the_radius_holds(desk):
    DispatchPolicy.objects.update(max_radius_m=55_000)
    placed(desk, "Bob", 60)
    job = desk.job()
    assert (job.status, job.pending_reason) == ("pending", "nobody_near")
    assert job.round == 2, "the third round would search the same radius"


def test_technician_of_a_wider_round_is_checked_against_its_radius(desk):
    """They drove away while the first phone rang."""
    placed(desk, "Ann", 1)
    bob = placed(desk, "Bob", 40)
    job = desk.job()
    far = factories.PHOENIX.lat + 70 * KM
    technician = Technician.objects.get(pk=bob.pk)
    technician.lat = far
    technician.save()
    declines(job)
    assert rounds_of(job) == [("Ann", 1), ("Bob", 2)]
    assert [text for text in said(job) if text.startswith("Dispatch skipped Bob: ")]


def test_policy_is_frozen_and_a_new_dispatch_begins_with_the_first_radius(desk):
    placed(desk, "Ann", 1)
    bob = placed(desk, "Bob", 60)
    job = desk.job()
    DispatchPolicy.objects.update(radius_growth=0)
    declines(job)
    assert live(job).technician == bob, "the job keeps the policy that it started with"
    services.cancel(job.pk, "a mistake", actor=MARIA)
    services.dispatch_again(job.pk, actor=MARIA)
    moves_on(job)
    assert (job.status, job.pending_reason) == ("pending", "exhausted"), "only Ann is near, and she declined"
    DispatchPolicy.objects.update(radius_growth=50)
    services.dispatch_again(job.pk, actor=MARIA)
    moves_on(job)
    assert live(job).technician == bob
    assert job.round == job.first_round + 1


@pytest.fixture
def committed(transactional_db: None) -> Desk:
    """Like `desk`, for tests in which another session locks rows."""
    made = Desk()
    Technician.objects.update(is_active=False)
    DispatchPolicy.objects.create(organization=made.organization, **GROWING)
    return made


def test_locked_technician_of_a_wider_round_holds_back_nobody_else(committed):
    placed(committed, "Ann", 1)
    bob, _ = placed(committed, "Bob", 60), placed(committed, "Cid", 70)
    job = committed.job()
    with held(bob):
        declines(job)
    assert rounds_of(job) == [("Ann", 1), ("Cid", 2)]
    misses(job)
    misses(job)
    assert rounds_of(job)[2:] == [("Cid", 3), ("Bob", 3)], "the next round finds who was locked"


def test_job_does_not_end_while_the_only_technician_is_locked(committed):
    bob = placed(committed, "Bob", 60)
    with held(bob), pytest.raises(OperationalError):
        committed.job()
    job = Job.objects.get()
    assert (job.status, Offer.objects.count()) == ("dispatching", 0)
    moves_on(job)
    assert rounds_of(job) == [("Bob", 3)]


def test_phone_of_a_far_technician_rings_when_nobody_is_near(floor):
    floor.set_policy(**GROWING)
    far = placed(floor, "Far", 100)
    job = floor.started()
    floor.rings(far).answer().hears("62 miles").press("1").hears("the job is yours")
    floor.until(lambda: floor.status(job) == "assigned")


# --- what people see --------------------------------------------------------------------------------------------
def signed_in(user: Any) -> Client:
    client = Client()
    client.force_login(user, backend="django.contrib.auth.backends.ModelBackend")
    return client


def test_board_says_how_far_is_searched_now_and_next(desk):
    placed(desk, "Ann", 1)
    placed(desk, "Bob", 60)
    placed(desk, "Cid", 65)
    job = desk.job()
    page = signed_in(desk.maria).get(f"/board/jobs/{job.pk}/", headers={"HX-Request": "true"}).content.decode()
    assert "Searching 31 mi (up to 70 mi in later rounds)" in page
    assert "Next: round 2, within 47 mi." in page
    declines(job)
    page = signed_in(desk.maria).get(f"/board/jobs/{job.pk}/", headers={"HX-Request": "true"}).content.decode()
    assert "Searching 47 mi (up to 70 mi in later rounds)" in page
    assert "40 mi, within the 47 mi of round 2" in page, "the reason of a candidate who is not called yet"
    drawn = build_map(desk.organization, job)
    assert drawn is not None
    assert drawn.radius_m == 75_000
    page = signed_in(desk.maria).get(f"/admin/jobs/job/{job.pk}/change/").content.decode()
    assert "Searching 47 mi (up to 70 mi in later rounds)" in page


def test_manual_assignment_knows_the_radius_of_the_round(desk):
    bob = placed(desk, "Bob", 60)
    ann = placed(desk, "Ann", 2)
    job = desk.job()
    (warning,) = services.assign(job.pk, bob.pk, actor=MARIA).warnings
    assert "outside the radius" in warning
    choices = {choice.name: choice.warning for choice in technician_picker.find_choices(job)[0]}
    assert "outside the radius" in choices["Bob"]
    declines(job)
    assert live(job).technician == bob
    services.call_next_now(job.pk, actor=MARIA)
    job = Job.objects.get(pk=job.pk)
    choices = {choice.name: choice.warning for choice in technician_picker.find_choices(job)[0]}
    assert choices["Bob"] == ""
    assert not services.assign(job.pk, bob.pk, actor=MARIA).warnings
    assert ann.name in choices


def test_api_and_admin_edit_the_fields(desk):
    admin = factories.admin(desk.organization)
    policy = DispatchPolicy.objects.get()
    api = Api(user=admin)
    answer = api.patch(f"policies/{policy.pk}/", {"radius_growth": 25, "max_radius_m": 90_000})
    assert answer.status_code == 200, answer.content
    effective = answer.json()["effective"]
    assert (effective["radius_growth"], effective["max_radius_m"]) == (25, 90_000)
    answer = api.patch(f"policies/{policy.pk}/", {"max_radius_m": 40_000})
    assert answer.status_code == 400
    assert answer.json()["errors"][0]["field"] == "max_radius_m"
    assert api.patch(f"policies/{policy.pk}/", {"radius_growth": 401}).status_code == 400
    job = desk.job()
    assert desk.api.get(f"jobs/{job.pk}/").json()["policy"]["radius_growth"] == 25
    browser = signed_in(admin)
    page = browser.get(f"/admin/jobs/dispatchpolicy/{policy.pk}/change/").content.decode()
    assert "Widen the radius per round (%)" in page
    assert "Each round searches this much farther than the round before." in page
    listed = browser.get("/admin/jobs/dispatchpolicy/").content.decode()
    assert "31 mi to 49 mi" in listed


def test_admin_warns_of_a_radius_that_never_widens(desk):
    policy = DispatchPolicy.objects.get()
    browser = signed_in(factories.admin(desk.organization))
    fields = {"radius_growth": 25, "rounds": 1, "quiet_for": ""}
    switches = dict.fromkeys(("offer_by_text", "address_by_text"), "unknown")
    switches |= {f"advance_on_{end}": "unknown" for end in ("decline", "busy", "failed", "no_answer", "hangup")}
    answer = browser.post(f"/admin/jobs/dispatchpolicy/{policy.pk}/change/", fields | switches, follow=True)
    assert "but there is only one round" in answer.content.decode()
    policy.refresh_from_db()
    assert (policy.radius_growth, policy.rounds) == (25, 1)
