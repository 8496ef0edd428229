"""The vocabulary of the leads tests: an organization that calls leads, its promoter, dialers and outcomes.

Promoter and dialers run step by step or continuously.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from dispatch.capacity import redis_scripts
from dispatch.core import clock
from dispatch.core.models import Event
from dispatch.core.redis import generation
from dispatch.core.redis.client import client, connect
from dispatch.core.runtime.loops import find_loop
from dispatch.leads import loops, redis_queue
from dispatch.leads.dialer import Dialer
from dispatch.leads.models import CallingRule, Campaign, Lead, LeadDispatch
from dispatch.leads.rules.states import Mode
from dispatch.leads.services import claims, completion
from dispatch.leads.services.claim_batches import ClaimResult
from dispatch.leads.services.intake import Accepted, NewLead, accept_leads
from dispatch.telephony import providers
from dispatch.telephony.models import Call, CallEvent
from dispatch.telephony.providers.base import Outcome
from dispatch.telephony.services import bulk as telephony
from dispatch.telephony.services.bulk import RequestResult
from tests.harness.threads import BackgroundThreads, run_service
from tests.support import factories
from tests.support.waiting import PATIENCE, wait_until

ALWAYS = {"window_from": "00:00", "window_until": "00:00", "keeps_holidays": False}


class Floor:
    """One organization whose leads are live, with a campaign that may call at any hour.

    `provider`: "noop-ends" calls nobody and its calls end at once; "twilio" is the simulator.
    """

    def __init__(self, provider: str = "noop-ends", lines: int = 5, **account: Any) -> None:
        CallingRule.objects.all().delete()  # the usual hours: these tests run by day and night
        generation.ensure_generation()
        self.organization = factories.organization("Copper State HVAC")
        LeadDispatch.objects.create(organization=self.organization, mode=Mode.LIVE)
        account.setdefault("calls_per_second", 10_000.0)
        self.account = factories.account(self.organization, provider=provider, **account)
        self.pool = factories.pool(self.organization, concurrency=1000)
        self.number = factories.number(self.organization, account=self.account, pool=self.pool, max_channels=lines)
        self.campaign = self.add_campaign()
        self._threads = BackgroundThreads()

    def use_provider(self, provider: str) -> None:
        self.account.provider = provider
        self.account.save()
        claims.reset()

    def add_campaign(self, **fields: Any) -> Campaign:
        code = f"campaign-{Campaign.objects.count()}"
        fields = {"pool": self.pool, "organization": self.organization, "script": "Hello.", **ALWAYS, **fields}
        return Campaign.objects.create(code=code, name=code, **fields)

    def add(self, *phones: str, at: datetime | None = None, to: Campaign | None = None) -> list[int]:
        """Leads of these phones, due `at` (default: now); their ids."""
        answers = self.accept([NewLead(phone, at) for phone in phones], to=to)
        assert all(answer.is_new for answer in answers), answers
        return [answer.id for answer in answers if answer.id]

    def add_many(self, count: int, **more: Any) -> list[int]:
        return self.add(*(factories.phone() for _ in range(count)), **more)

    def accept(self, leads: Sequence[NewLead], to: Campaign | None = None) -> list[Accepted]:
        return accept_leads(to or self.campaign, leads)

    # --- Step by step

    def promote(self) -> float | None:
        """Makes what is due ready; what the promoter then wished for."""
        while (wish := loops.promote_due()) == 0.0:
            pass
        return wish

    def claim(self, most: int = 100, worker: str = "tester") -> ClaimResult:
        return claims.claim_leads(worker, self.pool.pk, most)

    def ask(self, claimed: ClaimResult) -> list[RequestResult]:
        """Asks the provider for what was claimed."""
        answers = []
        for to_ask in claimed.calls:
            account = claimed.accounts[to_ask.call.account_id]
            order = telephony.build_request(to_ask.call, to_ask.call_id, account.provider, 5.0)
            outcome: Outcome = providers.for_account(account).place(order)
            answers.append(RequestResult(to_ask.call_id, to_ask.call, outcome))
        return answers

    def settle(self, answers: list[RequestResult]) -> None:
        for other in completion.record_outcomes(answers):
            telephony.record_result(other)

    def dial(self, most: int = 100) -> ClaimResult:
        """One batch from the room to the written outcome."""
        claimed = self.claim(most)
        self.settle(self.ask(claimed))
        return claimed

    def work(self) -> int:
        """Promotes and dials until nothing is ready, or calling is stopped; how many calls were made."""
        self.promote()
        made = 0
        while (claimed := self.dial()).taken and claimed.why != "stopped":
            made += len(claimed.calls)
        return made

    def step(self, loop: str) -> float | None:
        return find_loop(loop).step()

    # --- Running

    def start(self, dialers: int = 1, promoters: int = 1) -> None:
        for _ in range(dialers):
            self._threads.start(_dial)
        for _ in range(promoters):
            self._threads.start(_promote)

    def stop(self) -> None:
        self._threads.stop()

    # --- Outcome

    def lead(self, lead_id: int) -> Lead:
        return Lead.objects.get(pk=lead_id)

    def status(self, lead_id: int) -> str:
        return Lead.objects.values_list("status", flat=True).get(pk=lead_id)

    def outcomes(self, ids: Sequence[int] | None = None) -> dict[str, int]:
        """How many leads have which outcome, or status while they have none."""
        found: dict[str, int] = {}
        rows = Lead.objects.all() if ids is None else Lead.objects.filter(pk__in=ids)
        for status, outcome in rows.values_list("status", "outcome"):
            found[outcome or status] = found.get(outcome or status, 0) + 1
        return found

    def calls(self, lead_id: int) -> list[Call]:
        return list(Call.objects.filter(purpose="lead", subject_id=lead_id).order_by("attempt"))

    def told(self, lead_id: int) -> list[str]:
        """The lead's events, in order."""
        events = Event.objects.filter(subject_type="lead", subject_id=lead_id).order_by("id")
        return [kind.partition(".")[2] for kind in events.values_list("kind", flat=True)]

    def end_call(self, status: str) -> None:
        """End the only call with this status, and tell its lead."""
        Call.objects.update(status=status, ended_at=clock.now())
        completion.call_changed(Call.objects.get())

    def end_calls_unreported(self) -> None:
        """End all calls, whose scripts were spoken, without a word to their leads."""
        for call in Call.objects.all():
            CallEvent.objects.create(
                organization_id=call.organization_id, call=call, key="voice:1", kind="voice", payload={}
            )
        Call.objects.update(status="completed", ended_at=clock.now())

    def all_end(self) -> None:
        open_leads = Lead.objects.exclude(status="finished")
        wait_until(
            lambda: not open_leads.exists(),
            message=lambda: f"still open: {list(open_leads.values('id', 'status', 'reason', 'due_at')[:10])}",
            interval=0.1,
        )

    def due_in(self, seconds: float) -> datetime:
        return clock.now() + timedelta(seconds=seconds)

    def in_redis(self) -> dict[str, int]:
        """How many entries each of our sets holds."""
        server, base = client(), redis_queue.base_key()
        found: dict[str, int] = {}
        for name in server.scan_iter(match=f"{base}:*", count=1000):
            text = name.decode().removeprefix(f"{base}:")
            if text in ("swept", "spread"):
                continue
            found[text] = server.scard(name) if text == "rooms" else server.zcard(name)
        return found

    def assert_nothing_held(self) -> None:
        """Check that no batch holds a lead, and that each line in use has an open call."""
        assert {name for name in self.in_redis() if name.startswith("held")} == set()
        assert self.lines_in_use() == Call.objects.filter(ended_at=None).count()

    def lines_in_use(self) -> int:
        return int(client().hlen(f"{redis_scripts.base_key()}:line:{self.number.pk}"))


@dataclass
class _Subscription:
    listener: Any
    channel: str

    def __call__(self) -> list[str]:
        """Return the messages since the last call."""
        client().publish(self.channel, "that is all")
        heard: list[str] = []
        while "that is all" not in heard:
            message = self.listener.get_message(timeout=PATIENCE)
            if message and isinstance(message["data"], bytes):
                heard.append(message["data"].decode())
        return heard[:-1]


def subscribe_to(channel: str) -> Callable[[], list[str]]:
    """Subscribe to a Redis channel. The result returns the messages since its last call."""
    listener = connect(socket_timeout=PATIENCE).pubsub(ignore_subscribe_messages=True)
    listener.subscribe(channel)
    wait_until(lambda: client().pubsub_numsub(channel)[0][1] == 1)
    return _Subscription(listener, channel)


def _dial(stopping: threading.Event) -> None:
    run_service(lambda done: Dialer().run(done), stopping)


def _promote(stopping: threading.Event) -> None:
    while not stopping.is_set():
        wish = loops.promote_due()
        stopping.wait(min(wish if wish is not None else 0.02, 0.02))
