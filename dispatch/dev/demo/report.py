"""Classify the outcome of every line, and build the final table. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from dispatch.dev.demo.client import Answer
from dispatch.dev.demo.late_answers import WORDS as LATE_WORDS
from dispatch.dev.demo.lines import Line
from dispatch.dev.demo.outage import OutageFacts


class End(StrEnum):
    """Name how a line ended. UNACCOUNTED must not occur."""

    ASSIGNED = "assigned"
    DISPATCHERS = "sent to dispatchers"
    REJECTED = "rejected"
    REPEATED = "repeated"
    UNACCOUNTED = "unaccounted"


@dataclass(frozen=True)
class JobFacts:
    """Describe the state of a submission's job.

    `tries`: offers made. `assigned_after_s`: seconds from the form to the assignment. `notified` of `dispatchers`
    were notified. `api_status`: the job's status according to the API. `late_by`: the channel on which a
    technician accepted after the offer had expired, or "".
    """

    job_id: int
    status: str
    pending_reason: str
    pending_words: str
    tries: int
    assigned_after_s: float | None
    notified: int
    dispatchers: int
    api_status: str
    late_by: str = ""


@dataclass(frozen=True)
class Outcome:
    """Hold a line and its outcome. `why`: the reason in words, or the error."""

    line: Line
    end: End
    why: str = ""
    job: JobFacts | None = None


def classify_outcomes(
    lines: Iterable[Line], answers: Mapping[str, Answer], jobs: Mapping[int, JobFacts]
) -> list[Outcome]:
    """Return each line with its outcome. `answers` by the line's ref, `jobs` by submission id."""
    owners: dict[int, str] = {}
    outcomes = []
    for line in lines:
        outcome = _end_of(line, answers.get(line.ref), jobs)
        answer = answers.get(line.ref)
        if answer is not None and (pk := answer.submission_id) is not None:
            shared = owners.setdefault(pk, line.idempotency_key or line.ref)
            if shared != (line.idempotency_key or line.ref):
                outcome = Outcome(line, End.UNACCOUNTED, f"shares submission {pk} with another line")
        outcomes.append(outcome)
    return outcomes


def _end_of(line: Line, answer: Answer | None, jobs: Mapping[int, JobFacts]) -> Outcome:
    expected, _, detail = line.expect.partition(":")
    if answer is None:
        return Outcome(line, End.UNACCOUNTED, "not answered")
    if expected == "rejected":
        if answer.status == int(detail):
            return Outcome(line, End.REJECTED, f"{answer.status}, {line.why}")
        return Outcome(line, End.UNACCOUNTED, f"expected a rejection with {detail}; got {answer.status}")
    if (pk := answer.submission_id) is None:
        return Outcome(line, End.UNACCOUNTED, f"answered {answer.status}: {answer.detail}")
    if (job := jobs.get(pk)) is None:
        return Outcome(line, End.UNACCOUNTED, "accepted, but no job exists")
    if job.api_status != job.status:
        return Outcome(line, End.UNACCOUNTED, f"{job.status}; the API reports {job.api_status or 'nothing'}", job)
    if expected == "repeat":
        return Outcome(line, End.REPEATED, "same submission returned", job)
    if expected == "late":
        if job.status == "assigned" and job.late_by == detail:
            return Outcome(line, End.ASSIGNED, "", job)
        return Outcome(line, End.UNACCOUNTED, f"no late answer by {detail}; ended {job.status}", job)
    if job.status == "assigned" and expected == "job":
        return Outcome(line, End.ASSIGNED, "", job)
    if job.status == "pending" and detail in ("", job.pending_reason):
        if job.notified < job.dispatchers:
            return Outcome(
                line, End.UNACCOUNTED, f"only {job.notified} of {job.dispatchers} dispatchers notified", job
            )
        return Outcome(line, End.DISPATCHERS, job.pending_words, job)
    return Outcome(line, End.UNACCOUNTED, f"ended {job.status} {job.pending_reason}".strip(), job)


def table(outcomes: Sequence[Outcome], outage: OutageFacts | None = None) -> list[str]:
    """Return the summary, one row per line."""
    by_end = Counter(outcome.end for outcome in outcomes)
    assigned = [outcome.job for outcome in outcomes if outcome.end == End.ASSIGNED and outcome.job]
    times = sorted(job.assigned_after_s for job in assigned if job.assigned_after_s is not None)
    tries = Counter(job.tries for job in assigned)
    rows = [("Submitted", str(len(outcomes)), "forms in the file"), ("Assigned", str(by_end[End.ASSIGNED]), "")]
    if assigned:
        rows.append(("  tries needed", "", ", ".join(f"{n}: {count}×" for n, count in sorted(tries.items()))))
        rows.append(
            ("  time to assign", "", f"median {percentile(times, 50):.1f} s, 90th {percentile(times, 90):.1f} s")
        )
    rows += _late_rows(assigned)
    rows.append(("Sent to dispatchers", str(by_end[End.DISPATCHERS]), ""))
    rows += [("", str(n), why) for why, n in _counted(outcomes, End.DISPATCHERS)]
    rows.append(("Rejected", str(by_end[End.REJECTED]), ""))
    rows += [("", str(n), why) for why, n in _counted(outcomes, End.REJECTED)]
    rows.append(("Repeated", str(by_end[End.REPEATED]), "same answer as the first request, no second job"))
    rows.append(("Unaccounted", str(by_end[End.UNACCOUNTED]), ""))
    lost = [outcome for outcome in outcomes if outcome.end == End.UNACCOUNTED]
    rows += [("", outcome.line.ref, f"{outcome.line.label}: {outcome.why}") for outcome in lost]
    if outage is not None:
        rows += _outage_rows(outage)
    return [f"  {name:<22}{count:>4}  {words}".rstrip() for name, count, words in rows]


def _late_rows(assigned: Sequence[JobFacts]) -> list[tuple[str, str, str]]:
    """Return rows about jobs that a technician accepted after the offer had expired."""
    late = Counter(job.late_by for job in assigned if job.late_by)
    if not late:
        return []
    ways = ", ".join(f"{LATE_WORDS.get(way, way)}: {count}×" for way, count in sorted(late.items()))
    return [("  by a late yes", str(sum(late.values())), f"accepted after the offer had expired ({ways})")]


def _outage_rows(outage: OutageFacts) -> list[tuple[str, str, str]]:
    """Return rows about the provider outage."""
    recognized = "not recognized"
    if outage.recognized_s is not None:
        recognized = f"recognized after {outage.recognized_s:.1f} s"
    ended = "not ended" if outage.lasted_s is None else f"over {outage.lasted_s:.0f} s later"
    return [
        ("Provider outage", "1", f"{outage.cause or 'no cause shown'}; {recognized}, {ended}"),
        ("  jobs that waited", str(outage.waited), "on the board with that cause"),
        ("  jobs that continued", str(outage.assigned + outage.handed_over), f"assigned: {outage.assigned}, "
         f"nobody accepted: {outage.handed_over}"),
        ("  offers withdrawn", str(outage.withdrawn), "not counted: these technicians keep their turn"),
        ("  offers used up", str(outage.used_up), "must be 0"),
        *(("", "", f"Error: {problem}") for problem in outage.problems),
    ]  # fmt: skip


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the nearest-rank percentile of sorted values."""
    return ordered[max(0, math.ceil(len(ordered) * share / 100) - 1)]


def _counted(outcomes: Iterable[Outcome], end: End) -> list[tuple[str, int]]:
    return Counter(outcome.why for outcome in outcomes if outcome.end == end).most_common()
