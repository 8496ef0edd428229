"""What one webhook costs, by kind: CPU time of the web process and of PostgreSQL, statements, Redis commands.

Webhooks pass through the whole ASGI application, in this process and without a socket. The rows of their calls are
as after an accepted request; there is no provider.
"""

from __future__ import annotations

import asyncio
import itertools
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple
from urllib.parse import urlencode

from django.conf import settings
from django.db import connection

from dispatch.core import clock
from dispatch.core.redis import generation
from dispatch.dev.simulator.webhooks import signature
from dispatch.jobs.models import DispatchPolicy
from dispatch.leads import loops
from dispatch.leads.services import claims, completion
from dispatch.telephony.models import Call, Text
from dispatch.telephony.providers.base import Submitted
from dispatch.telephony.services.bulk import RequestResult
from dispatch.telephony.services.calls import notify_handler
from tests.benchmarks import Result, leads_ground
from tests.benchmarks.jobs_site import server_pids
from tests.benchmarks.measuring import median_and_spread
from tests.benchmarks.processes import Meter
from tests.benchmarks.whole_counts import counted, statements
from tests.benchmarks.whole_provider import TOKEN
from tests.harness.jobs import started_job
from tests.support import factories

COUNT, ROUNDS = 40, 3
ACTION = re.compile(r'<Gather[^>]* action="([^"]+)"')
_numbers = itertools.count(1)


# Creates this number of calls or texts.
MakeSubjects = Callable[[int], Sequence[Call | Text]]


class Step(NamedTuple):
    """A webhook of each call: `path` under the call's address, and the fields that are not the same in all."""

    kind: str
    path: str
    fields: dict[str, str]


PROMPT = Step("prompt", "voice", {"CallStatus": "in-progress"})
RINGING = Step("ringing", "status", {"CallStatus": "ringing", "SequenceNumber": "0"})
KEY = Step("key", "gather?step=1&keys=12s", {"CallStatus": "in-progress", "Digits": "1", "msg": "Gather End"})
COMPLETED = Step("completed", "status", {"CallStatus": "completed", "SequenceNumber": "2", "CallDuration": "12"})
BUSY = Step("busy", "status", {"CallStatus": "busy", "SequenceNumber": "1"})
DELIVERED = Step("delivered", "status", {"MessageStatus": "delivered"})


def run() -> Iterator[Result]:
    generation.ensure_generation()
    with _pooled():
        client = Client()
        for name, (make_calls, steps) in GROUNDS.items():
            yield from _measured(client, name, make_calls, steps)


def _measured(client: Client, name: str, make_calls: MakeSubjects, steps: tuple[Step, ...]) -> Iterator[Result]:
    spent: dict[str, list[tuple[float, float]]] = {}
    _play(client, make_calls(5), steps, lambda kind, send: send())  # everything is imported and prepared

    def measure(kind: str, send: Callable[[], None]) -> None:
        with Meter(server_pids()) as servers:
            began = time.process_time()
            send()
            ours = time.process_time() - began
        spent.setdefault(kind, []).append((1000 * ours / COUNT, 1000 * servers.spent["postgres"] / COUNT))

    for _ in range(ROUNDS):
        _play(client, make_calls(COUNT), steps, measure)
    counts: dict[str, tuple[Counter[str], float]] = {}

    def count(kind: str, send: Callable[[], None]) -> None:
        with counted() as numbers, statements() as found:
            send()
        sql = Counter({statement: times for (_, statement), times in found.items()})
        counts[kind] = sql, numbers.redis_commands / COUNT

    _play(client, make_calls(COUNT), steps, count)
    for kind, figures in spent.items():
        sql, commands = counts[kind]
        what = f"{name}, {kind}"
        yield from median_and_spread(f"{what}: CPU of the web process", [ours for ours, _ in figures], "ms")
        yield from median_and_spread("  CPU of PostgreSQL", [servers for _, servers in figures], "ms")
        yield Result("  SQL statements", sql.total() / COUNT, "statements")
        yield Result("  Redis commands", commands, "commands")


def _play(
    client: Client,
    calls: Sequence[Call | Text],
    steps: tuple[Step, ...],
    measure: Callable[[str, Callable[[], None]], None],
) -> None:
    for step in steps:
        posts = [client.prepare(call, step) for call in calls]
        measure(step.kind, lambda posts=posts: client.send(posts))  # type: ignore[misc]


class Client:
    """Sends signed webhooks to the ASGI application of this process."""

    def __init__(self) -> None:
        from dispatch.asgi import application

        self._application: Any = application

    def prepare(self, call: Call | Text, step: Step) -> tuple[dict[str, Any], bytes]:
        """Return the scope and the body of a webhook."""
        kind = "calls" if isinstance(call, Call) else "texts"
        named = {"CallSid" if isinstance(call, Call) else "MessageSid": call.sid or ""}
        fields = {
            "AccountSid": call.account.account_sid, "ApiVersion": "2010-04-01", **named,
            "Called": str(call.to_phone), "CalledCity": "", "CalledCountry": "US", "CalledState": "AZ",
            "CalledZip": "", "Caller": str(call.from_phone), "CallerCity": "PHOENIX", "CallerCountry": "US",
            "CallerState": "AZ", "CallerZip": "85001", "Direction": "outbound-api",
            "From": str(call.from_phone), "FromCity": "PHOENIX", "FromCountry": "US", "FromState": "AZ",
            "FromZip": "85001", "To": str(call.to_phone), "ToCity": "", "ToCountry": "US", "ToState": "AZ",
            "ToZip": "", **step.fields,
        }  # fmt: skip
        path = f"/telephony/twilio/{kind}/{call.pk}/{step.path}"
        body = urlencode(fields).encode()
        before, _, query = path.partition("?")
        headers = {
            "host": "localhost", "content-type": "application/x-www-form-urlencoded",
            "content-length": str(len(body)), "user-agent": "TwilioProxy/1.1", "accept": "*/*",
            "x-twilio-signature": signature(TOKEN, f"{settings.PUBLIC_BASE_URL}{path}", fields),
        }  # fmt: skip
        scope = {
            "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "scheme": "http",
            "path": before, "raw_path": before.encode(), "query_string": query.encode(), "root_path": "",
            "headers": [(key.encode(), value.encode()) for key, value in headers.items()],
            "client": ("127.0.0.1", 40_000), "server": ("127.0.0.1", 8000),
        }  # fmt: skip
        return scope, body

    def send(self, posts: list[tuple[dict[str, Any], bytes]]) -> None:
        """Send the webhooks one after the other."""
        asyncio.run(self._send(posts))

    async def _send(self, posts: list[tuple[dict[str, Any], bytes]]) -> None:
        for scope, body in posts:
            status = 0

            async def receive(body: bytes = body) -> dict[str, Any]:
                return {"type": "http.request", "body": body, "more_body": False}

            async def send(message: dict[str, Any]) -> None:
                nonlocal status
                status = message.get("status", status)

            await self._application(dict(scope), receive, send)
            assert status in (200, 204), f"{scope['path']}: {status}"


def offer_calls(count: int) -> list[Call]:
    """Calls of technicians about new jobs, which the provider has accepted."""
    made = factories.organization()
    account = factories.account(made, auth_token=TOKEN, calls_per_second=1000.0)
    pool = factories.pool(made, concurrency=count)
    factories.number(made, account=account, pool=pool, max_channels=count)
    service = factories.service_type(made, "water-heater", name="Water heater repair")
    DispatchPolicy.objects.create(organization=made)
    for n in range(count):
        factories.technician(made, f"Technician {n}")
    for _ in range(count):
        started_job(made, service, customer_phone=f"+1602{2_000_000 + next(_numbers):07d}")
    calls = list(Call.objects.filter(organization=made).select_related("account"))
    for call in calls:
        call.status, call.sid, call.submitted_at = Call.Status.SUBMITTED, _sid(), clock.now()
        call.save()
        notify_handler(call)
    assert len(calls) == count
    return calls


def lead_calls(count: int) -> list[Call]:
    """Calls of leads, which the provider has accepted."""
    (tenant,) = leads_ground.tenants("twilio", 1)
    leads_ground.put(leads_ground.add_leads(tenant, count))
    while loops.promote_due() == 0.0:
        pass
    claimed = claims.claim_leads("bench", tenant.campaign.pool_id, count)
    completion.record_outcomes(
        [RequestResult(asked.call_id, asked.call, Submitted(_sid())) for asked in claimed.calls]
    )
    calls = list(Call.objects.filter(organization_id=tenant.organization_id).select_related("account"))
    assert len(calls) == count
    return calls


def texts(count: int) -> list[Text]:
    """Texts that the provider has accepted."""
    made = factories.organization()
    number = factories.number(made, account=factories.account(made, auth_token=TOKEN))
    return [
        Text.objects.create(
            organization=made, direction="out", purpose="link", subject_id=next(_numbers), account=number.account,
            number=number, to_phone=leads_ground.phone(), from_phone=number.phone, body="Hello.",
            status="submitted", not_after=clock.now(), sid=_sid(),
        )
        for _ in range(count)
    ]  # fmt: skip


def _sid() -> str:
    return f"CA{time.time_ns():016x}{next(_numbers):016x}"


@contextmanager
def _pooled() -> Iterator[None]:
    """Use a pool of connections, as the web process does."""
    options = connection.settings_dict["OPTIONS"]
    connection.close()
    options["pool"] = {"min_size": 1, "max_size": 16, "timeout": 5}
    try:
        yield
    finally:
        wrapper: Any = connection
        wrapper.close()
        wrapper.close_pool()
        del options["pool"]


GROUNDS: dict[str, tuple[MakeSubjects, tuple[Step, ...]]] = {
    "offer": (offer_calls, (RINGING, PROMPT, KEY, COMPLETED)),
    "lead, busy": (lead_calls, (RINGING, BUSY)),
    "text": (texts, (DELIVERED,)),
    "lead, answered": (lead_calls, (RINGING, PROMPT, COMPLETED)),
}
