"""Every line of the demo's file is counted under one end, or reported as unaccounted."""

import pytest

from dispatch.dev.demo.client import Answer
from dispatch.dev.demo.lines import Line
from dispatch.dev.demo.outage import OutageFacts
from dispatch.dev.demo.report import End, JobFacts, classify_outcomes, percentile, table

FORM = {"service_type": "ac-repair", "address": "31 E 5th St, Tempe, AZ 85281"}


def line(ref="01", expect="job", **more):
    return Line(ref, expect, body=FORM, **more)


def accepted(pk):
    return Answer(202, {"id": pk, "status": "received"}, 0.01)


def job(status="assigned", **more):
    made = {
        "job_id": 9, "status": status, "pending_reason": "", "pending_words": "", "tries": 1,
        "assigned_after_s": 4.0, "notified": 2, "dispatchers": 2, "api_status": status, **more,
    }  # fmt: skip
    return JobFacts(**made)


def end_of(one, answer=None, facts=None):
    answers = {one.ref: answer} if answer else {}
    (outcome,) = classify_outcomes([one], answers, {1: facts} if facts else {})
    return outcome.end


def test_expected_outcomes_are_classified():
    nobody = job("pending", pending_reason="nobody_near", pending_words="No fit technician near")
    assert end_of(line(), accepted(1), job()) == End.ASSIGNED
    assert end_of(line(), accepted(1), nobody) == End.DISPATCHERS
    assert end_of(line(expect="pending:nobody_near"), accepted(1), nobody) == End.DISPATCHERS
    assert end_of(line(expect="rejected:400"), Answer(400, {"detail": "No."}, 0.01)) == End.REJECTED
    assert end_of(line(expect="repeat"), accepted(1), job()) == End.REPEATED
    assert end_of(line(expect="late:text"), accepted(1), job(late_by="text")) == End.ASSIGNED


@pytest.mark.parametrize(
    ("expect", "answer", "facts"),
    [
        ("job", None, None),  # never answered
        ("job", Answer(0, None, 20.0, "no answer"), None),
        ("job", Answer(503, None, 0.1), None),
        ("job", Answer(400, {"detail": "No."}, 0.1), None),
        ("job", accepted(1), None),  # accepted and lost
        ("job", accepted(1), job("dispatching")),  # hangs
        ("job", accepted(1), job("assigned", api_status="dispatching")),  # the API reports another status
        (
            "job",
            accepted(1),
            job("pending", pending_reason="exhausted", notified=1),
        ),  # a dispatcher was not notified
        ("job", accepted(1), job("cancelled")),
        ("pending:nobody_near", accepted(1), job()),  # somebody went to Alaska
        ("pending:nobody_near", accepted(1), job("pending", pending_reason="exhausted")),
        ("rejected:400", accepted(1), job()),  # should have been rejected
        ("rejected:400", Answer(500, None, 0.1), None),
        ("repeat", Answer(422, {}, 0.1), None),
        ("late:text", accepted(1), job()),  # assigned, but not by a late answer
        ("late:text", accepted(1), job(late_by="call_back")),
        ("late:text", accepted(1), job("pending", pending_reason="exhausted")),
    ],
)
def test_anything_else_is_unaccounted_for(expect, answer, facts):
    assert end_of(line(expect=expect), answer, facts) == End.UNACCOUNTED


def test_two_lines_cannot_share_a_submission_unless_they_share_the_key():
    jobs = {1: job()}
    answers = {"01": accepted(1), "02": accepted(1)}
    twins = [line("01"), line("02")]
    assert [one.end for one in classify_outcomes(twins, answers, jobs)] == [End.ASSIGNED, End.UNACCOUNTED]
    same = [line("01", idempotency_key="k"), line("02", "repeat", idempotency_key="k")]
    assert [one.end for one in classify_outcomes(same, answers, jobs)] == [End.ASSIGNED, End.REPEATED]


def test_the_table_counts_tries_times_and_reasons():
    lines = [line(f"{n:02d}") for n in range(1, 6)] + [line("06", "rejected:400", why="bad phone"), line("07")]
    pending = job("pending", pending_reason="exhausted", pending_words="Nobody accepted")
    facts = {n: job(tries=n % 2 + 1, assigned_after_s=float(n)) for n in range(1, 5)} | {5: pending}
    answers = {f"{n:02d}": accepted(n) for n in range(1, 6)} | {"06": Answer(400, {}, 0.1)}
    text = "\n".join(table(classify_outcomes(lines, answers, facts)))
    for words in (
        "Submitted                7", "Assigned                 4", "1: 2×, 2: 2×", "median 2.0 s, 90th 4.0 s",
        "1  Nobody accepted", "1  400, bad phone", "Unaccounted              1",
        "07  ac repair, Tempe: not answered",
    ):  # fmt: skip
        assert words in text


def test_table_names_late_answers_and_the_outage():
    lines = [line("01", "late:text"), line("02", "late:call_back"), line("03")]
    facts = {1: job(late_by="text"), 2: job(late_by="call_back"), 3: job()}
    answers = {f"0{n}": accepted(n) for n in (1, 2, 3)}
    text = " ".join(" ".join(table(classify_outcomes(lines, answers, facts), outage())).split())
    for words in (
        "by a late yes 2 accepted after the offer had expired (called back: 1×, texted 1: 1×)",
        "Provider outage 1 No response; recognized after 1.5 s, over 12 s later",
        "jobs that waited 9", "jobs that continued 9 assigned: 8, nobody accepted: 1",
        "offers withdrawn 4", "offers used up 0",
    ):  # fmt: skip
        assert words in text
    assert "Error" not in text


@pytest.mark.parametrize(
    "wrong", [{"recognized_s": None}, {"lasted_s": None}, {"waited": 0}, {"stuck": 1}, {"used_up": 1}]
)
def test_outage_without_its_expected_effects_is_an_error(wrong):
    assert not outage().problems
    (problem,) = outage(**wrong).problems
    assert f"Error: {problem}" in "\n".join(table([], outage(**wrong)))


def outage(**more):
    facts = {
        "cause": "No response", "recognized_s": 1.5, "lasted_s": 12, "waited": 9, "assigned": 8, "handed_over": 1,
        "stuck": 0, "withdrawn": 4, "used_up": 0, **more,
    }  # fmt: skip
    return OutageFacts(**facts)


def test_percentiles_are_values_that_occurred():
    assert percentile([1.0, 2.0, 3.0, 10.0], 50) == 2.0
    assert percentile([1.0, 2.0, 3.0, 10.0], 90) == 10.0
    assert percentile([5.0], 90) == 5.0
