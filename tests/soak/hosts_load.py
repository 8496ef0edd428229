"""The load on a site of several hosts, what it has achieved so far, and what of it was lost or done twice.

One organization gets forms, leads, messages in three groups, and schedules that run once and send a message.
Careful clients send them at a gentle rate. Progress is counted where it can be seen without PostgreSQL.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, NamedTuple

from django.db import DatabaseError

from dispatch.capacity.models import OutboundNumber
from dispatch.core import clock
from dispatch.core.models import Event
from dispatch.jobs.models import DispatchPolicy, Job, Offer, Submission
from dispatch.leads.models import Lead
from dispatch.outbox.models import Attempt, Message
from dispatch.schedules.models import Run, Schedule
from dispatch.technicians.models import Technician
from dispatch.telephony.models import Call
from tests.harness.leads import Floor
from tests.harness.outbox import OPEN
from tests.outbox.receiver import Receiver
from tests.phones import Simulator, answer
from tests.soak.clients import Clients
from tests.support import factories as make

GROUPS = 3
# The leads would otherwise take all lines of the pool under load, and offers would wait for one.
LINES_OF_OFFERS = 6
EVERY_S = {"forms": 1.0, "leads": 1.0, "messages": 0.4, "schedules": 1.5}
PATHS = {"forms": "submissions"}
RUN_IN = timedelta(seconds=3)
RUNS_ENDED = ("succeeded", "failed", "skipped", "missed", "cancelled")


class Seed(NamedTuple):
    """An organization that can be sent to: an API key, the code of a campaign and the technicians' phones."""

    key: str
    campaign: str
    technicians: frozenset[str]


def make_organization(sim: Simulator) -> Seed:
    """Make the organization with this version's code, in the database in use."""
    floor = Floor("twilio", lines=5, account_sid=sim.account_sid, auth_token=sim.auth_token)
    floor.campaign.time_limit_s = 30
    floor.campaign.max_attempts = 10
    floor.campaign.save()
    organization = floor.organization
    make.number(organization, account=floor.account, max_channels=8, reserved_for_offers=LINES_OF_OFFERS)
    make.service_type(organization, "plumbing")
    DispatchPolicy.objects.create(
        organization=organization, answer_timeout_s=15, ring_timeout_s=14, max_candidates=5, line_wait_s=600,
        technician_wait_s=600,
    )  # fmt: skip
    for _ in range(20):
        make.technician(organization, max_open_jobs=10_000)
    phones = frozenset(str(one.phone) for one in Technician.objects.all())
    return Seed(make.api_key(organization), floor.campaign.code, phones)


class Load:
    """Everything that was ever sent to the organization of `seed`, which is made unless it is given.

    `pace` multiplies the pauses between requests.
    """

    def __init__(self, sim: Simulator, receiver: Receiver, seed: Seed | None = None, pace: float = 1.0) -> None:
        self.sim, self.receiver, self.pace = sim, receiver, pace
        sim.others_will(answer(press="1"))
        self.key, self._campaign, self.technicians = seed or make_organization(sim)
        self.accepted: dict[str, dict[str, set[int]]] = defaultdict(dict)
        self.refused: list[str] = []
        self.failed: list[str] = []  # and sent again
        self._numbers = {name: itertools.count() for name in EVERY_S}

    # --- What is sent
    def start(self, base_url: str) -> Sending:
        return Sending(self, base_url)

    def requests(self, name: str, is_over: threading.Event) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield (idempotency key, body) until it is over."""
        while not is_over.is_set():
            n = next(self._numbers[name])
            yield f"{name}-{n}", self._body(name, n)

    def _body(self, name: str, n: int) -> dict[str, Any]:
        message = {"target_url": self.receiver.url, "type": "chaos"}
        match name:
            case "forms":
                return make.form("plumbing")
            case "leads":
                return {"campaign": self._campaign, "phone": make.phone()}
            case "messages":
                return {**message, "group": f"g{n % GROUPS}", "payload": {"name": f"message-{n}"}}
            case _:
                at = (clock.now() + RUN_IN).isoformat()
                payload = {**message, "payload": {"name": f"run-{n}"}}
                return {"name": f"schedule-{n}", "kind": "message", "payload": payload, "trigger_at": at}

    # --- What it has achieved
    def settled(self) -> bool:
        return not self.left()

    def left(self) -> dict[str, Any]:
        """Return what is still in progress."""
        found = {
            "submissions": Submission.objects.filter(status="received").count(),
            "jobs": list(
                Job.objects.filter(status="dispatching").values_list("pk", "waiting_for", "next_action_at")
            ),
            "leads": list(Lead.objects.exclude(status="finished").values_list("pk", "status", "due_at")[:20]),
            "messages": list(
                Message.objects.filter(status__in=OPEN).values_list("pk", "status", "waiting_for", "due_at")[:20]
            ),
            "calls": list(
                Call.objects.filter(ended_at=None).values_list("pk", "purpose", "status", "sid", "requested_at")[
                    :20
                ]
            ),
            "runs": list(Run.objects.exclude(status__in=RUNS_ENDED).values_list("pk", "status", "due_at")[:20]),
            "calls of the provider": len(self.sim.open_calls()),
        }
        return {name: left for name, left in found.items() if left}

    def waiting(self) -> str:
        """Return the open calls by purpose and status, and what the jobs wait for."""
        try:
            calls = Counter(Call.objects.filter(ended_at=None).values_list("purpose", "status"))
            jobs = Counter(Job.objects.filter(status="dispatching").values_list("waiting_for", flat=True))
        except DatabaseError as error:
            return str(error).strip()
        return f"calls {dict(calls)}, jobs {dict(jobs)}"

    # --- What went wrong
    def lost(self) -> list[str]:
        """Return what was accepted and has not arrived where it should."""
        ids = {name: {one for found in self.accepted[name].values() for one in found} for name in EVERY_S}
        found = [f"a request was refused: {text}" for text in self.refused]
        for name, model in (("forms", Submission), ("leads", Lead), ("schedules", Schedule)):
            rows = set(model.objects.values_list("pk", flat=True))
            found += [f"{name}: {pk} was accepted and is not there" for pk in ids[name] - rows]
        found += _missing(
            "submission without a job", ids["forms"], Job.objects.values_list("submission_id", flat=True)
        )
        ended = Lead.objects.filter(status="finished", outcome="answered").values_list("pk", flat=True)
        found += _missing("lead that was not called", ids["leads"], ended)
        delivered = Message.objects.filter(status="COMPLETED").values_list("pk", flat=True)
        found += _missing("message that was not delivered", ids["messages"], delivered)
        succeeded = Run.objects.filter(status="succeeded").values_list("schedule_id", flat=True)
        found += _missing("schedule that did not run", ids["schedules"], succeeded)
        arrived = set(self.receiver.names)
        for name, kind in (("messages", "message"), ("schedules", "run")):
            wanted = {key.replace(name, kind) for key in self.accepted[name]}
            found += [f"{missing} was not received" for missing in wanted - arrived]
        made = {call["sid"] for call in self._calls()}
        known = set(Call.objects.filter(sid__isnull=False).values_list("sid", flat=True))
        return found + [f"call {sid} of the provider is not known" for sid in made - known]

    def doubled(self) -> list[str]:
        """Return what was done twice, out of order, or beyond a limit."""
        found = [
            f"{key} became {sorted(pks)}"
            for answered in self.accepted.values()
            for key, pks in answered.items()
            if len(pks) > 1
        ]
        assigned = Event.objects.filter(kind="job.assigned").values_list("subject_id", flat=True)
        found += _repeated("jobs of a submission", Job.objects.values_list("submission_id", flat=True))
        found += _repeated("assignments of a job", assigned)
        found += self._two_heard_that_the_job_is_theirs()
        found += self._calls_beyond_their_offers()
        found += self._disorder()
        for number in OutboundNumber.objects.all():
            most = self.sim.max_simultaneous(str(number.phone))
            if most > number.max_channels:
                found.append(f"{number.phone} had {most} calls at once")
        sent = Message.objects.filter(payload__contains='"run-').values_list("payload", flat=True)
        return found + _repeated("messages of a run", sent)

    def notes(self) -> str:
        """Return the states in which jobs ended, for the report."""
        ends = Counter(Job.objects.exclude(status="assigned").values_list("status", "pending_reason"))
        complaints = self.sim.complaints()
        return f"{dict(ends) or 'all jobs assigned'}; complaints of the provider: {complaints[:3] or 'none'}"

    def _calls(self) -> list[dict[str, Any]]:
        return self.sim.calls(limit="100000")

    def _two_heard_that_the_job_is_theirs(self) -> list[str]:
        calls = dict(Call.objects.filter(sid__isnull=False).values_list("sid", "subject_id"))
        jobs = dict(Offer.objects.values_list("pk", "job_id"))
        heard: dict[int, set[str]] = defaultdict(set)
        for call in self._calls():
            if any("job is yours" in words["text"].lower() for words in call["said"]):
                heard[jobs[calls[call["sid"]]]].add(call["to"])
        owners = dict(Job.objects.filter(pk__in=heard).values_list("pk", "technician__phone"))
        return [
            f"job {job} was confirmed to {sorted(phones)} and belongs to {owners[job]}"
            for job, phones in heard.items()
            if phones != {str(owners[job])}
        ]

    def _calls_beyond_their_offers(self) -> list[str]:
        """Return calls that the provider made beyond one per offer and per attempt of a lead."""
        creates = {phone: found["created"] for phone, found in self.sim.get("/control/creates").items()}
        placed = Call.objects.filter(sid__isnull=False)
        allowed = Counter(str(phone) for phone in placed.values_list("to_phone", flat=True))
        found = [
            f"{phone} got {made} calls for {allowed[phone]}"
            for phone, made in creates.items()
            if made > allowed[phone]
        ]
        found += _repeated(
            "calls of an offer", Call.objects.filter(purpose="offer").values_list("subject_id", flat=True)
        )
        heard = Counter(
            call["to"]
            for call in self._calls()
            if call["to"] not in self.technicians and any("hello" in said["text"].lower() for said in call["said"])
        )
        return found + [
            f"lead {phone} heard the script {times} times" for phone, times in heard.items() if times > 1
        ]

    def _disorder(self) -> list[str]:
        visits = [visit for visit in list(self.receiver.visits) if visit.name.startswith("message-")]
        found, last = [], dict.fromkeys(range(GROUPS), -1)
        seen: set[str] = set()
        for visit in visits:
            n = int(visit.name.removeprefix("message-"))
            if visit.name not in seen and n < last[n % GROUPS]:
                found.append(f"{visit.name} came after message-{last[n % GROUPS]}")
            last[n % GROUPS] = max(last[n % GROUPS], n)
            seen.add(visit.name)
        attempts = Attempt.objects.count()
        if len(self.receiver.visits) > attempts:
            found.append(f"{len(self.receiver.visits)} requests of {attempts} recorded attempts")
        return found + [
            f"{one} and {other} overlap" for one, other in self.receiver.overlaps() if one[:3] != "run"
        ]


class Sending:
    """The clients of one episode."""

    def __init__(self, load: Load, base_url: str) -> None:
        self._load, self._is_over = load, threading.Event()
        self._clients = {
            name: Clients(
                f"{base_url}/api/v1/{PATHS.get(name, name)}/",
                load.key,
                load.requests(name, self._is_over),
                every_s * load.pace,
                seed=1,
                at_once=1 if name == "messages" else 3,
            )
            for name, every_s in EVERY_S.items()
        }
        for clients in self._clients.values():
            clients.start()

    def progress(self) -> dict[str, Callable[[], int]]:
        """Return what each part of the site has done in all, as a count that grows."""
        load = self._load

        def created(of_technicians: bool) -> int:
            creates = load.sim.get("/control/creates").items()
            return sum(
                found["created"] for phone, found in creates if (phone in load.technicians) is of_technicians
            )

        def received(prefix: str) -> int:
            return len({name for name in load.receiver.names if name.startswith(prefix)})

        return {
            "requests": lambda: sum(len(clients.answered) for clients in self._clients.values()),
            "offers": lambda: created(True),
            "leads": lambda: created(False),
            "messages": lambda: received("message-"),
            "runs": lambda: received("run-"),
        }

    @property
    def done(self) -> bool:
        return all(clients.done for clients in self._clients.values())

    def finish(self) -> None:
        """Send nothing new; what was begun is sent until it is accepted."""
        self._is_over.set()

    def stop(self) -> None:
        self.finish()
        for name, clients in self._clients.items():
            clients.stop()
            self._load.accepted[name].update(clients.answered)
            self._load.refused += clients.refused
            self._load.failed += clients.failed


class Watch:
    """Count in a thread what each part of the site has done, while the test causes faults.

    `silence_s`: the longest time that each part has stood still since `restart()`. `first_growth`: when each went
    on after it, in seconds of time.monotonic().
    """

    EVERY_S = 0.25

    def __init__(self, sending: Sending) -> None:
        self._progress = sending.progress()
        self._counts = {name: count() for name, count in self._progress.items()}
        self._grew_at = dict.fromkeys(self._progress, time.monotonic())
        self.silence_s = dict.fromkeys(self._progress, 0.0)
        self.first_growth: dict[str, float] = {}
        self._lock, self._is_over = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._look_on, name="watch", daemon=True)
        self._thread.start()

    def standing_still(self) -> list[str]:
        """Return the parts that have not gone on since `restart()`."""
        with self._lock:
            return sorted(set(self._progress) - set(self.first_growth))

    def silences_now(self) -> dict[str, float]:
        """Return for how long each part has stood still."""
        with self._lock:
            return {name: time.monotonic() - at for name, at in self._grew_at.items()}

    def restart(self) -> None:
        """Forget what was seen so far."""
        with self._lock:
            self.silence_s = dict.fromkeys(self._progress, 0.0)
            self.first_growth = {}

    def all_grew(self) -> bool:
        """Return whether every part has gone on since `restart()`."""
        assert self._thread.is_alive() or self._is_over.is_set(), "the watch has died"
        with self._lock:
            return len(self.first_growth) == len(self._progress)

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join()

    def _look_on(self) -> None:
        while not self._is_over.wait(self.EVERY_S):
            for name, count in self._progress.items():
                self._record(name, count(), time.monotonic())

    def _record(self, name: str, found: int, now: float) -> None:
        with self._lock:
            self.silence_s[name] = max(self.silence_s[name], now - self._grew_at[name])
            if found > self._counts[name]:
                self._counts[name], self._grew_at[name] = found, now
                self.first_growth.setdefault(name, now)


def _missing(what: str, wanted: set[int], found: Any) -> list[str]:
    return [f"{what}: {pk}" for pk in sorted(wanted - set(found))]


def _repeated(what: str, subjects: Any) -> list[str]:
    return [f"{times} {what} {subject}" for subject, times in Counter(subjects).items() if times > 1]
