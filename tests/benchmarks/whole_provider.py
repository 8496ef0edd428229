"""A phone provider over HTTP that costs little: `python -m tests.benchmarks.whole_provider PORT`.

It accepts each call at once and then plays its plan with signed webhooks: only the reports that the request asked
for, the prompt, one key, the end. POST /control/plan/<name> chooses the plan, GET /control/state counts.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import sys
import time
from collections import Counter
from collections.abc import Mapping
from html import unescape
from urllib.parse import urlencode

import uvloop
from aiohttp import web

from dispatch.dev.simulator.webhooks import signature
from tests.benchmarks.http_client import HttpClient

TOKEN = "token-of-the-benchmark"  # of every account
ACTION = re.compile(r'<Gather[^>]* action="([^"]+)"')
# Seconds after the request for a call until the phone rings, is answered; then until a key, until the end.
RINGS_S, ANSWERS_S, DECIDES_S, ENDS_S = 0.05, 0.15, 0.1, 0.1
PLANS = ("accept", "busy", "silent")
TRIES = 4
CONNECTIONS = 64


def asked_at(sid: str) -> float:
    """Return the moment (Unix seconds) at which the call with this id was requested."""
    return int(sid[2:18], 16) / 1e6


class Provider:
    """Accepts calls and plays `plan` for each; `counts` has the requests, webhooks and responses."""

    def __init__(self) -> None:
        self.plan = PLANS[0]
        self.counts: Counter[str] = Counter()
        self._numbers = itertools.count()
        self._playing: set[asyncio.Task[None]] = set()

    async def start(self, app: web.Application) -> None:
        self._client = HttpClient(CONNECTIONS)

    async def stop(self, app: web.Application) -> None:
        self._client.close()

    async def create(self, request: web.Request) -> web.Response:
        form = await request.post()
        fields = {key: str(form[key]) for key in form}
        events = {str(event) for event in form.getall("StatusCallbackEvent", [])}
        sid = f"CA{time.time_ns() // 1000:016x}{next(self._numbers):016x}"
        self.counts["asked"] += 1
        call = _Call(self, self._client, request.match_info["account"], sid, fields, events)
        task = asyncio.create_task(call.play(self.plan))
        self._playing.add(task)
        task.add_done_callback(self._finish)
        return _resource(call.account, sid, "queued", 201)

    def _finish(self, task: asyncio.Task[None]) -> None:
        self._playing.discard(task)
        self.counts["failed" if task.exception() else "ended"] += 1

    async def update(self, request: web.Request) -> web.Response:
        self.counts["updated"] += 1
        return _resource(request.match_info["account"], request.match_info["sid"], "completed", 200)

    async def fetch(self, request: web.Request) -> web.Response:
        """Answer a request for a call's price."""
        self.counts["fetched"] += 1
        return _resource(request.match_info["account"], request.match_info["sid"], "completed", 200)

    async def list_calls(self, request: web.Request) -> web.Response:
        """Answer a request for the account's calls with an empty page."""
        self.counts["listed"] += 1
        return web.json_response({"calls": [], "page": 0, "page_size": 50, "next_page_uri": None})

    async def choose(self, request: web.Request) -> web.Response:
        self.plan = request.match_info["plan"]
        return web.json_response({})

    async def state(self, request: web.Request) -> web.Response:
        return web.json_response({"playing": len(self._playing), **self.counts})


class _Call:
    """One call: its webhooks, in order."""

    def __init__(
        self,
        provider: Provider,
        client: HttpClient,
        account: str,
        sid: str,
        fields: Mapping[str, str],
        events: set[str],
    ) -> None:
        self._provider, self._client, self.account, self._sid = provider, client, account, sid
        self._fields, self._events, self._sequence = fields, events, itertools.count()
        self._form = {
            "AccountSid": account, "ApiVersion": "2010-04-01", "CallSid": sid,
            "Called": fields["To"], "CalledCity": "", "CalledCountry": "US", "CalledState": "AZ",
            "CalledZip": "", "Caller": fields["From"], "CallerCity": "PHOENIX", "CallerCountry": "US",
            "CallerState": "AZ", "CallerZip": "85001", "Direction": "outbound-api",
            "From": fields["From"], "FromCity": "PHOENIX", "FromCountry": "US", "FromState": "AZ",
            "FromZip": "85001", "To": fields["To"], "ToCity": "", "ToCountry": "US", "ToState": "AZ",
            "ToZip": "",
        }  # fmt: skip
        self._encoded = urlencode(self._form)

    async def play(self, plan: str) -> None:
        if plan == "silent":
            return
        await self._report("initiated", "initiated")
        await asyncio.sleep(RINGS_S)
        await self._report("ringing", "ringing")
        await asyncio.sleep(ANSWERS_S - RINGS_S)
        if plan == "busy":
            await self._report("completed", "busy")
            return
        document, _ = await asyncio.gather(
            self._send(self._fields["Url"], {"CallStatus": "in-progress"}), self._report("answered", "in-progress")
        )
        await asyncio.sleep(DECIDES_S)
        if asks := ACTION.search(document):
            url = unescape(asks.group(1))
            await self._send(url, {"CallStatus": "in-progress", "Digits": "1", "msg": "Gather End"})
        await asyncio.sleep(ENDS_S)
        await self._report("completed", "completed", CallDuration="1", Duration="1")

    async def _report(self, event: str, status: str, **more: str) -> None:
        if event in self._events:
            about = {"SequenceNumber": str(next(self._sequence)), "CallbackSource": "call-progress-events"}
            url = self._fields["StatusCallback"]
            await self._send(url, {"CallStatus": status, "Timestamp": time.strftime("%c"), **about, **more})

    async def _send(self, url: str, more: Mapping[str, str]) -> str:
        """Send one webhook with the provider's fields; repeat it without a response and after a 5xx."""
        address = url.partition("#")[0]
        signed = signature(TOKEN, address, {**self._form, **more})
        headers = {"X-Twilio-Signature": signed, "User-Agent": "TwilioProxy/1.1"}
        form = f"{self._encoded}&{urlencode(more)}".encode()
        for _ in range(TRIES):
            try:
                status, body = await self._client.post(address, form, headers)
            except ConnectionError:
                self._provider.counts["webhook unanswered"] += 1
                continue
            self._provider.counts[f"webhook {status}"] += 1
            if status < 500:
                return body
        raise RuntimeError(f"{address} failed {TRIES} times")


def _resource(account: str, sid: str, status: str, code: int) -> web.Response:
    return web.Response(
        body=json.dumps(
            {"sid": sid, "account_sid": account, "status": status, "price": "-0.01300", "price_unit": "USD"}
        ),
        status=code,
        content_type="application/json",
    )


def make_app() -> web.Application:
    """Return the provider's routes."""
    provider, app = Provider(), web.Application()
    base = "/2010-04-01/Accounts/{account}"
    app.router.add_post(f"{base}/Calls.json", provider.create)
    app.router.add_get(f"{base}/Calls.json", provider.list_calls)
    app.router.add_post(f"{base}/Calls/{{sid}}.json", provider.update)
    app.router.add_get(f"{base}/Calls/{{sid}}.json", provider.fetch)
    app.router.add_post("/control/plan/{plan}", provider.choose)
    app.router.add_get("/control/state", provider.state)
    app.on_startup.append(provider.start)
    app.on_cleanup.append(provider.stop)
    return app


if __name__ == "__main__":
    uvloop.install()
    web.run_app(make_app(), host="127.0.0.1", port=int(sys.argv[1]), print=None, access_log=None)
