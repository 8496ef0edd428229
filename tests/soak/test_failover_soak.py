"""PostgreSQL's primary is killed under load, and its synchronous standby is promoted five seconds later.

Forms, leads and messages are sent by careful clients all the while. Nothing acknowledged is lost, nobody is called
twice for one offer or attempt, and everything goes on within GOES_ON_WITHIN_S of the kill, without a restart.

Run by `make soak`.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from dispatch.jobs.models import DispatchPolicy, Job, Offer, Submission
from dispatch.leads.models import Lead
from dispatch.outbox.models import Attempt, Message
from dispatch.technicians.models import Technician
from dispatch.telephony.models import Call
from tests.harness.leads import Floor
from tests.harness.outbox import OPEN
from tests.harness.postgres_pair import PostgresPair, database_pair, pair
from tests.outbox.receiver import Receiver
from tests.phones import Simulator, answer
from tests.soak.clients import Clients
from tests.soak.site import Site, site
from tests.soak.test_jobs_soak import lines_are_never_exceeded, nobody_is_assigned_twice
from tests.support import factories as make
from tests.support.database import reconnect
from tests.support.histories import history_is_legal
from tests.support.waiting import wait_until

__all__ = ["database_pair", "pair"]

pytestmark = [pytest.mark.soak, pytest.mark.django_db(transaction=True), pytest.mark.timeout(1800)]

FORMS, LEADS, MESSAGES = 120, 120, 240
BEFORE_S = 15.0  # of load before the kill
PROMOTED_AFTER_S = 5.0  # as an operator's script or Patroni would
GOES_ON_WITHIN_S = 30.0
QUICK_LEADS = {"LEADS_JITTER_S": "1", "LEADS_RETRY_DELAY_S": "1", "LEADS_UNTOLD_S": "2"}
CALM_WITHIN_S = 240
SENT_WITHIN_S = 900  # a minute, unless the machine is overloaded


class Load:
    """One organization's forms, leads and messages, each from its own clients."""

    def __init__(self, sim: Simulator, receiver: Receiver) -> None:
        self.sim, self.receiver = sim, receiver
        sim.others_will(answer(press="1"))
        self.floor = Floor("twilio", lines=5, account_sid=sim.account_sid, auth_token=sim.auth_token)
        self.floor.campaign.time_limit_s = 30
        self.floor.campaign.save()
        organization = self.floor.organization
        make.number(organization, account=self.floor.account, max_channels=8, reserved_for_offers=6)
        make.service_type(organization, "plumbing")
        DispatchPolicy.objects.create(
            organization=organization, answer_timeout_s=15, ring_timeout_s=14, max_candidates=5, line_wait_s=600,
            technician_wait_s=600,
        )  # fmt: skip
        for _ in range(20):
            make.technician(organization, max_open_jobs=FORMS)
        self.key = make.api_key(organization)
        self.clients: dict[str, Clients] = {}

    def send_to(self, base_url: str) -> None:
        forms = [(f"form-{n}", make.form("plumbing")) for n in range(FORMS)]
        lead = {"campaign": self.floor.campaign.code}
        leads = [(f"lead-{n}", {**lead, "phone": make.phone()}) for n in range(LEADS)]
        message = {"target_url": self.receiver.url, "type": "soak", "group": "g"}
        messages = [(f"message-{n}", {**message, "payload": {"name": f"{n}"}}) for n in range(MESSAGES)]
        for name, path, bodies, every_s, at_once in (
            ("forms", "submissions", forms, 0.35, 3),
            ("leads", "leads", leads, 0.35, 3),
            ("messages", "messages", messages, 0.17, 1),
        ):
            url = f"{base_url}/api/v1/{path}/"
            self.clients[name] = Clients(url, self.key, bodies, every_s, seed=1, at_once=at_once)
            self.clients[name].start()

    def stop(self) -> None:
        for clients in self.clients.values():
            clients.stop()

    @property
    def done(self) -> bool:
        return all(clients.done for clients in self.clients.values())

    def progress(self) -> dict[str, Callable[[], int]]:
        """What each plane has done so far, as a count that grows."""
        accepted = {name: (lambda c=c: len(c.answered)) for name, c in self.clients.items()}
        return {
            **{f"{name} accepted": count for name, count in accepted.items()},
            "calls made": lambda: len(self.sim.calls(limit="100000")),
            "messages delivered": lambda: len(self.receiver.visits),
        }


def test_primary_is_killed_under_load_and_the_standby_promoted(
    database_pair: PostgresPair, slow_sim: Simulator, receiver: Receiver, tmp_path: Any, settings: Any
) -> None:
    settings.SIMULATOR_URL = slow_sim.base_url
    load = Load(slow_sim, receiver)
    moment = threading.Event()
    with site(slow_sim, tmp_path, DATABASE_URL=database_pair.url(), **QUICK_LEADS) as here:
        load.send_to(here.base_url)
        try:
            wait_until(lambda: all(count() for count in load.progress().values()), message=here.logs)
            moment.wait(BEFORE_S)
            assert not load.done, "everything was sent before the primary was killed"
            database_pair.kill_primary()
            killed_at = time.monotonic()
            reconnect()
            moment.wait(PROMOTED_AFTER_S)
            before = {name: count() for name, count in load.progress().items()}
            database_pair.promote()
            resumed = seconds_until_each_grows(load.progress(), before, killed_at, here)
            print({name: f"{seconds:.1f} s" for name, seconds in resumed.items()})  # noqa: T201
            wait_until(lambda: load.done, SENT_WITHIN_S, here.logs)
        finally:
            load.stop()
        everything_settles(here, slow_sim)
        assert here.ended() == []
    assert {name: seconds for name, seconds in resumed.items() if seconds > GOES_ON_WITHIN_S} == {}
    assert not [refused for clients in load.clients.values() for refused in clients.refused]
    forms_became_one_job_each(load.clients["forms"])
    leads_were_called_once(load.clients["leads"], slow_sim)
    messages_arrived_in_order(load.clients["messages"], receiver)
    nobody_is_called_twice(slow_sim)
    nobody_is_assigned_twice(slow_sim)
    lines_are_never_exceeded(slow_sim)
    print(history_is_legal())  # noqa: T201


def seconds_until_each_grows(
    progress: dict[str, Callable[[], int]], before: dict[str, int], since: float, here: Site
) -> dict[str, float]:
    resumed: dict[str, float] = {}

    def all_grew() -> bool:
        for name, count in progress.items():
            if name not in resumed and count() > before[name]:
                resumed[name] = time.monotonic() - since
        return len(resumed) == len(progress)

    wait_until(all_grew, CALM_WITHIN_S, lambda: f"{resumed}\n{here.logs()}")
    return resumed


def everything_settles(here: Site, sim: Simulator) -> None:
    def settled() -> bool:
        return not (
            Submission.objects.filter(status="received").exists()
            or Job.objects.filter(status="dispatching").exists()
            or Lead.objects.exclude(status="finished").exists()
            or Message.objects.filter(status__in=OPEN).exists()
            or Call.objects.filter(ended_at=None).exists()
            or sim.open_calls()
        )

    def left() -> str:
        calls = Call.objects.filter(ended_at=None).values_list("pk", "purpose", "status", "sid", "requested_at")
        leads = Lead.objects.exclude(status="finished").values_list("pk", "status", "due_at")
        return f"calls {list(calls)}\nleads {list(leads)}\n{here.logs()}"

    wait_until(settled, CALM_WITHIN_S, left, interval=0.5)


def forms_became_one_job_each(clients: Clients) -> None:
    assert len(clients.answered) == FORMS
    accepted = {identity for identities in clients.answered.values() for identity in identities}
    assert len(accepted) == FORMS, "one key, two submissions"
    assert set(Submission.objects.values_list("pk", flat=True)) == accepted
    assert Counter(Job.objects.values_list("submission_id", flat=True)) == dict.fromkeys(accepted, 1)


def leads_were_called_once(clients: Clients, sim: Simulator) -> None:
    accepted = {identity for identities in clients.answered.values() for identity in identities}
    assert len(accepted) == LEADS, "one key, two leads"
    assert set(Lead.objects.values_list("pk", flat=True)) == accepted
    assert set(Lead.objects.values_list("outcome", flat=True)) == {"answered"}
    heard = Counter(
        call["to"]
        for call in sim.calls(limit="100000")
        if any("hello" in words["text"].lower() for words in call["said"])
    )
    # One whose script could not be read to them, because the database was gone, is called again.
    phones = {str(phone) for phone in Lead.objects.values_list("phone", flat=True)}
    wrong = {phone: heard[phone] for phone in phones if heard[phone] != 1}
    said = {phone: [call["said"] for call in sim.calls(limit="100000") if call["to"] == phone] for phone in wrong}
    assert wrong == {}, said


def messages_arrived_in_order(clients: Clients, receiver: Receiver) -> None:
    """Each is received, in order; one that was received again was cut off, and that is a recorded attempt."""
    accepted = {identity for identities in clients.answered.values() for identity in identities}
    assert set(Message.objects.values_list("pk", flat=True)) == accepted
    assert Counter(Message.objects.values_list("status", flat=True)) == {"COMPLETED": MESSAGES}
    first_visits = list(dict.fromkeys(receiver.names))
    assert first_visits == [str(n) for n in range(MESSAGES)]
    assert len(receiver.visits) <= Attempt.objects.count()
    assert receiver.overlaps() == []


def nobody_is_called_twice(sim: Simulator) -> None:
    """Every call that the provider made has a row, and nobody got more calls than offers."""
    made = [call["sid"] for call in sim.calls(limit="100000")]
    assert set(made) == set(Call.objects.filter(sid__isnull=False).values_list("sid", flat=True))
    for technician in Technician.objects.all():
        offered = Offer.objects.filter(technician=technician).count()
        assert sim.creates_to(str(technician.phone)) <= offered, technician
    for lead in Lead.objects.all():
        attempts = Call.objects.filter(purpose="lead", subject_id=lead.pk, sid__isnull=False)
        assert sim.creates_to(str(lead.phone)) == attempts.count(), lead
