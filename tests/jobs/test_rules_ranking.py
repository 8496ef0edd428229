"""Who is first, who is next, and how a policy is put together."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import pytest
from django.conf import settings
from hypothesis import given
from hypothesis import strategies as st

from dispatch.jobs import rules
from dispatch.jobs.rules import CandidateRow, CascadePolicy, OfferRow

NOW = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
POLICY = CascadePolicy(**settings.DISPATCH_POLICY_DEFAULTS)


@dataclass(frozen=True)
class Someone:
    technician_id: int = 1
    verdict: str = "in"
    distance_m: int = 1000
    open_jobs: int = 0
    max_open_jobs: int = 1
    last_offered_at: datetime | None = None
    skill_ids: tuple[int, ...] = ()
    travel_s: int | None = None


def order(people, policy=POLICY) -> list[int]:
    return [place.technician.technician_id for place in rules.rank_candidates(policy, people, NOW)]


def test_the_nearer_technician_comes_first():
    assert order([Someone(1, distance_m=9000), Someone(2, distance_m=3000)]) == [2, 1]


def test_free_technicians_come_before_busy_ones():
    busy = Someone(1, open_jobs=1, max_open_jobs=2, distance_m=1000)
    assert order([busy, Someone(2, distance_m=2000)]) == [2, 1]


def test_recently_called_technicians_come_later():
    rung = Someone(1, last_offered_at=NOW - timedelta(minutes=1))
    rested = Someone(2, last_offered_at=NOW - timedelta(hours=2), distance_m=1500)
    assert order([rung, rested]) == [2, 1]


def test_weights_decide_what_counts():
    near_and_loaded = Someone(1, distance_m=1000, open_jobs=1, max_open_jobs=2)
    far_and_free = Someone(2, distance_m=40_000)
    assert order([near_and_loaded, far_and_free]) == [1, 2]
    workload_first = replace(POLICY, weight_distance=0.0, weight_workload=1.0, weight_rest=0.0)
    assert order([near_and_loaded, far_and_free], workload_first) == [2, 1]


def test_ineligible_technicians_come_last():
    assert order([Someone(1, verdict="out", distance_m=10), Someone(2, distance_m=30_000)]) == [2, 1]


def test_shorter_drive_comes_before_the_shorter_line():
    across_the_river = Someone(1, distance_m=3000, travel_s=1500)
    assert order([across_the_river, Someone(2, distance_m=8000, travel_s=600)]) == [2, 1]
    assert order([across_the_river, Someone(2, distance_m=8000)]) == [1, 2], "one drive alone says nothing"


def test_unknown_drives_rank_at_the_typical_speed():
    known = [Someone(1, distance_m=6000, travel_s=600), Someone(2, distance_m=12_000, travel_s=1200)]
    assert order([*known, Someone(3, distance_m=9000)]) == [1, 3, 2]
    strange = Someone(4, distance_m=10, travel_s=600_000)
    assert order([*known, Someone(3, distance_m=9000), strange]) == [1, 3, 2, 4]


def test_drives_change_neither_who_is_eligible_nor_the_other_weights():
    loaded = Someone(1, distance_m=9000, travel_s=300, open_jobs=4, max_open_jobs=5)
    free, out = Someone(2, distance_m=9000, travel_s=900), Someone(3, verdict="out", distance_m=10, travel_s=1)
    assert order([out, loaded, free]) == [2, 1, 3]


def test_drives_of_no_time_are_no_speed():
    assert order([Someone(2, distance_m=0, travel_s=0), Someone(1, distance_m=0, travel_s=0)]) == [1, 2]


@given(st.lists(st.tuples(st.integers(1, 50_000), st.integers(1, 10_000)), max_size=20))
def test_equally_free_technicians_are_called_by_their_minutes(trips):
    crew = [Someone(nth, distance_m=far, travel_s=drive) for nth, (far, drive) in enumerate(trips)]
    ranked = rules.rank_candidates(POLICY, crew, NOW)
    assert [place.technician.travel_s for place in ranked] == sorted(drive for _, drive in trips)


people = st.lists(
    st.builds(
        Someone,
        technician_id=st.integers(1, 10_000),
        verdict=st.sampled_from(["in", "deferred", "out"]),
        distance_m=st.integers(0, 50_000),
        open_jobs=st.integers(0, 5),
        max_open_jobs=st.integers(0, 5),
        last_offered_at=st.none() | st.timedeltas(timedelta(), timedelta(hours=3)).map(lambda ago: NOW - ago),
        travel_s=st.none() | st.integers(0, 90_000),
    ),
    unique_by=lambda one: one.technician_id,
    max_size=50,
)


@given(people, st.randoms())
def test_ranking_is_whole_and_does_not_depend_on_the_order_asked(considered, chance):
    ranked = rules.rank_candidates(POLICY, considered, NOW)
    shuffled = list(considered)
    chance.shuffle(shuffled)
    assert rules.rank_candidates(POLICY, shuffled, NOW) == ranked
    assert [place.rank for place in ranked] == list(range(1, len(considered) + 1))
    assert {place.technician for place in ranked} == set(considered)
    verdicts = [place.technician.verdict == "out" for place in ranked]
    assert verdicts == sorted(verdicts)
    scores = [place.score for place in ranked if place.technician.verdict != "out"]
    assert scores == sorted(scores)


cascades = st.fixed_dictionaries(
    {
        "size": st.integers(0, 12),
        "out": st.sets(st.integers(0, 11)),
        "never": st.sets(st.integers(0, 11)),
        "rounds": st.integers(1, 3),
        "most": st.integers(1, 12),
        "busy": st.sets(st.integers(0, 11)),
        "codes": st.lists(
            st.sampled_from(["declined", "busy", "no_answer", "timed_out", "failed", "bad_number", "hangup"]),
            min_size=1,
            max_size=8,
        ),
    }
)


@given(cascades)
def test_every_cascade_ends_and_asks_nobody_twice_in_a_round(given_):
    """Plays a whole cascade in which nobody accepts."""
    policy = replace(POLICY, rounds=given_["rounds"], max_candidates=given_["most"])
    candidates = [CandidateRow(n, n + 1, "out" if n in given_["out"] else "in") for n in range(given_["size"])]
    offers: list[OfferRow] = []
    round_, waited = 1, False
    for _ in range(200):
        step = rules.next_step(
            candidates,
            offers,
            policy=policy,
            round_=round_,
            first_round=1,
            busy=given_["busy"] if not waited else (),
            may_wait=not waited,
            not_again=given_["never"],
        )
        if step.kind == "exhausted":
            break
        if step.kind == "wait":
            waited = True
        elif step.kind == "round":
            round_ += 1
        else:
            code = given_["codes"][len(offers) % len(given_["codes"])]
            offers.append(OfferRow(step.technician_id, round_, code))
    else:
        pytest.fail("the cascade never ended")
    asked = [(offer.technician_id, offer.round) for offer in offers]
    assert len(asked) == len(set(asked))
    assert round_ <= given_["rounds"]
    assert len({who for who, _ in asked}) <= given_["most"]
    assert not {who for who, _ in asked} & (given_["out"] | given_["never"])
    for place, offer in enumerate(offers):
        if offer.code in ("declined", "bad_number"):
            assert offer.technician_id not in [later.technician_id for later in offers[place + 1 :]]
    fit = set(range(given_["size"])) - given_["out"] - given_["never"]
    assert len({who for who, at in asked if at == 1}) == min(len(fit), given_["most"])


def test_others_are_called_before_waiting_for_a_busy_one():
    rows = [CandidateRow(1, 1, "deferred"), CandidateRow(2, 2, "in")]
    args = {"policy": POLICY, "round_": 1, "first_round": 1}
    assert rules.next_step(rows, [], busy={1}, **args) == rules.NextStep("offer", 2)
    tried = [OfferRow(2, 1, "declined")]
    assert rules.next_step(rows, tried, busy={1}, **args) == rules.NextStep("wait")
    assert rules.next_step(rows, tried, **args) == rules.NextStep("offer", 1)
    assert rules.next_step(rows, tried, busy={1}, may_wait=False, **args) == rules.NextStep("exhausted")


def test_technician_rescinded_by_a_pause_is_offered_again():
    rows = [CandidateRow(1, 1, "in"), CandidateRow(2, 2, "in")]
    step = rules.next_step(rows, [OfferRow(1, 1, "paused")], policy=POLICY, round_=1, first_round=1)
    assert step == rules.NextStep("offer", 1, (2,))


def test_unfit_technician_is_checked_again_in_the_next_round():
    rows = [CandidateRow(1, 1, "out", skipped_round=1), CandidateRow(2, 2, "out")]
    two = replace(POLICY, rounds=2)
    assert rules.next_step(rows, [], policy=two, round_=1, first_round=1) == rules.NextStep("round")
    assert rules.next_step(rows, [], policy=two, round_=2, first_round=1) == rules.NextStep("offer", 1)


def test_next_step_names_those_who_come_after_the_technician():
    rows = [CandidateRow(n, n, "out" if n == 3 else "in") for n in range(1, 7)]
    step = rules.next_step(rows, [OfferRow(2, 1, "declined")], busy={5}, policy=POLICY, round_=1, first_round=1)
    assert step == rules.NextStep("offer", 1, (4, 6))


def test_who_declined_is_never_asked_again_and_who_missed_is():
    rows = [CandidateRow(1, 1, "in")]
    before = [OfferRow(1, 1, "declined")]
    assert rules.next_step(rows, before, policy=POLICY, round_=1, first_round=1).kind == "exhausted"
    assert rules.next_step(rows, before, policy=POLICY, round_=2, first_round=2).kind == "exhausted"
    before = [OfferRow(1, 1, "no_answer")]
    assert rules.next_step(rows, before, policy=POLICY, round_=2, first_round=2) == rules.NextStep("offer", 1)


def test_a_policy_takes_each_field_from_the_nearest_row_that_has_it():
    service = {"answer_timeout_s": 120, "rounds": None}
    organization = {"answer_timeout_s": 200, "rounds": 2, "advance_on_busy": False}
    policy = rules.effective_policy([service, organization], settings.DISPATCH_POLICY_DEFAULTS)
    assert (policy.answer_timeout_s, policy.rounds, policy.advance_on_busy) == (120, 2, False)
    assert policy.radius_m == settings.DISPATCH_POLICY_DEFAULTS["radius_m"]


def test_a_frozen_policy_survives_storage_and_an_older_release():
    stored = json.loads(json.dumps(replace(POLICY, rounds=3, weight_rest=0.0).to_json()))
    assert CascadePolicy.from_json(stored, settings.DISPATCH_POLICY_DEFAULTS).rounds == 3
    del stored["line_wait_s"]
    stored["of_a_later_release"] = 1
    thawed = CascadePolicy.from_json(stored, settings.DISPATCH_POLICY_DEFAULTS)
    assert thawed.line_wait_s == settings.DISPATCH_POLICY_DEFAULTS["line_wait_s"]
    assert thawed.weight_rest == 0.0


def test_a_policy_must_ring_for_less_than_it_waits():
    assert (
        "shorter"
        in rules.policy_problems(replace(POLICY, ring_timeout_s=60, answer_timeout_s=60))["ring_timeout_s"]
    )
    assert rules.policy_problems(replace(POLICY, ring_timeout_s=59, answer_timeout_s=60)) == {}
    no_weights = replace(POLICY, weight_distance=0.0, weight_workload=0.0, weight_rest=0.0)
    assert "weight_distance" in rules.policy_problems(no_weights)
