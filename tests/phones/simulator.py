"""Run the simulator as a separate process, and let tests control it."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import requests

from tests.support.waiting import PATIENCE, wait_until

from .behaviours import Behaviour, manual
from .handset import Phone, PhoneCall

ROOT = Path(__file__).resolve().parent.parent.parent
ACCOUNT_SID = "AC" + "a1".rjust(32, "0")
AUTH_TOKEN = "token-of-the-simulator"

# Nothing moves on by itself because this machine is slow: neither a phone that the test operates nor a webhook
# whose answer takes long. Real seconds.
PATIENT = {"webhook_floor": 60.0, "hand_floor": 600.0}

T = TypeVar("T")


class Simulator:
    """A running simulator. Use it as a context manager, or call `stop`."""

    account_sid = ACCOUNT_SID
    auth_token = AUTH_TOKEN

    def __init__(self, process: subprocess.Popen[bytes], base_url: str, log: Path) -> None:
        self._process = process
        self.base_url = base_url
        self._log = log
        self._forgiven = False
        self._phones: dict[str, Phone] = {}
        self._http = requests.Session()
        self._http.trust_env = False

    @classmethod
    def start(
        cls,
        *,
        speed: float = 20.0,
        seed: int = 1,
        clock: str = "scaled",
        port: int = 0,
        calls_per_second: float = 1000.0,
        max_concurrent: int | None = None,
        numbers: list[str | dict[str, Any]] | None = None,
        countries: list[str] | None = None,
        arguments: Sequence[str] = (),
        **config: Any,
    ) -> Simulator:
        """Start a simulator on a free port, and return when it is ready.

        `port` restarts a stopped one at its address. `arguments` are further ones of its command. Further keys of
        its configuration go in `config`.
        """
        folder = Path(tempfile.mkdtemp(prefix="simulator-"))
        account = {
            "sid": ACCOUNT_SID,
            "auth_token": AUTH_TOKEN,
            "calls_per_second": calls_per_second,
            "max_concurrent": max_concurrent,
            "owns_any_number": numbers is None,
            "numbers": numbers or [],
            "countries": countries or ["+1"],
        }
        accounts = [account, *config.pop("accounts", [])]
        config = {
            "accounts": accounts,
            "handsets": {"default": manual()},
            **config,
            "timing": {**PATIENT, **config.pop("timing", {})},
        }
        (folder / "config.json").write_text(json.dumps(config))
        ready, log = folder / "ready.json", folder / "log"
        command = [
            sys.executable,
            "-m",
            "dispatch.dev.simulator",
            "--leash",
            "--clock",
            clock,
            "--port",
            str(port),
        ]
        command += ["--speed", str(speed), "--seed", str(seed), "--ready-file", str(ready)]
        command += ["--config", str(folder / "config.json"), *arguments]
        with log.open("wb") as out:
            process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=out, stderr=out)

        def up() -> bool:
            return ready.exists() or process.poll() is not None

        wait_until(up, message=lambda: f"the simulator did not start\n{log.read_text()}")
        assert process.poll() is None, f"the simulator stopped at once\n{log.read_text()}"
        return cls(process, json.loads(ready.read_text())["base_url"], log)

    def __enter__(self) -> Simulator:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> int:
        """Stop it cleanly; its exit code."""
        self._http.close()
        if self._process.poll() is None:
            self._process.terminate()
        code = self._process.wait(timeout=PATIENCE)
        if self._process.stdin is not None:
            self._process.stdin.close()
        return code

    def log(self) -> str:
        return self._log.read_text()

    def request(self, method: str, path: str, *, check: bool = True, **more: Any) -> requests.Response:
        """A request to the control API; AssertionError with its words when it refuses."""
        response = self._http.request(method, self.base_url + path, timeout=90, **more)
        assert response.ok or not check, f"{method} {path}: {response.status_code} {response.text}"
        return response

    def get(self, path: str, **query: Any) -> Any:
        return self.request("GET", path, params=query).json()

    def until(self, condition: Callable[[], T], within: float, message: str | Callable[[], str]) -> T:
        """Ask again at each change that the simulator reports, until the condition is true or time is up."""
        deadline = time.monotonic() + within
        while True:
            version = self.get("/control/state")["version"]
            value = condition()
            left = deadline - time.monotonic()
            if value:
                return value
            if left <= 0:
                told = message() if callable(message) else message
                raise AssertionError(f"not within {within:g} s: {told}")
            self.get("/control/changes", after=version, wait=min(left, 2.0))

    def reset(self) -> None:
        """Forget all calls, texts, scripts, faults and complaints."""
        self.request("POST", "/control/reset")
        self._forgiven = False
        self._phones.clear()

    def client(
        self, account_sid: str = ACCOUNT_SID, auth_token: str = AUTH_TOKEN, timeout: float = PATIENCE
    ) -> Any:
        """The provider's official client, aimed at this simulator."""
        from twilio.http.http_client import TwilioHttpClient
        from twilio.rest import Client

        http = TwilioHttpClient(timeout=timeout)
        http.session.trust_env = False
        client = Client(account_sid, auth_token, http_client=http)
        client.api.base_url = self.base_url
        return client

    def phone(self, number: str) -> Phone:
        """The same phone each time, so that its `rings` goes on from call to call."""
        return self._phones.setdefault(number, Phone(self, number))

    def others_will(self, *behaviours: Behaviour) -> None:
        """What all phones do that have no script of their own."""
        self.request("PUT", "/control/handsets", json={"default": list(behaviours)})

    def add_number(self, number: str, **settings: str) -> None:
        """One of our numbers, with voice_url, sms_url, status_callback as needed."""
        self.request("PUT", "/control/numbers", json={"account": ACCOUNT_SID, "number": number, **settings})

    def calls(self, **filters: str) -> list[dict[str, Any]]:
        """All calls, oldest first; filters: to, from, phone, status; `fields`: which of each, "sid,to"."""
        return list(self.get("/control/calls", **filters)["calls"])

    def calls_to(self, number: str) -> list[PhoneCall]:
        return [PhoneCall(self, call["sid"]) for call in self.calls(to=number)]

    def open_calls(self) -> list[PhoneCall]:
        return [PhoneCall(self, call["sid"]) for call in self.calls(open="1")]

    def messages(self, **filters: str) -> list[dict[str, Any]]:
        return list(self.get("/control/messages", **filters)["messages"])

    def max_simultaneous(self, from_number: str) -> int:
        """The most calls from this number that were ever open (created and not over) at one moment."""
        return int(self.get("/control/lines").get(from_number, {}).get("max_open", 0))

    def creates_to(self, number: str) -> int:
        """How many calls to it were really created, also those whose creation was never answered."""
        return int(self.get("/control/creates").get(number, {}).get("created", 0))

    def asked_for(self, number: str) -> int:
        """How many create requests for it arrived, also refused ones."""
        return int(self.get("/control/creates").get(number, {}).get("asked", 0))

    def complaints(self) -> list[str]:
        """What our code sent that the provider would not take."""
        return [f"{c['about']}: {c['text']}" for c in self.get("/control/complaints")["complaints"]]

    def forgive(self) -> None:
        """This test means to send nonsense: complaints do not fail it."""
        self._forgiven = True

    def assert_no_complaints(self) -> None:
        found = self.complaints()
        assert self._forgiven or not found, "the simulator complains:\n" + "\n".join(found)

    def story(self) -> str:
        """All calls with their histories, for a failure message."""
        stories = [PhoneCall(self, call["sid"]).story() for call in self.calls(limit="20")]
        return "\n\n".join(stories) or "there were no calls at all"

    def advance(self, seconds: float) -> None:
        """Move a manual clock; returns when all that it set off, webhooks too, is done."""
        self.request("POST", "/control/clock", json={"advance": seconds})

    def fault(self, kind: str, **details: Any) -> int:
        """Any fault of the simulator by its own name; its id."""
        return int(self.request("POST", "/control/faults", json={"kind": kind, **details}).json()["id"])

    def heal(self) -> None:
        """End all faults."""
        self.request("DELETE", "/control/faults")

    def lose_callbacks(self, times: int | None = None, **details: Any) -> None:
        self.fault("lose", times=times, **details)

    def duplicate_callbacks(self, times: int | None = None, **details: Any) -> None:
        self.fault("duplicate", times=times, **details)

    def delay_callbacks(self, seconds: float, times: int | None = None, **details: Any) -> None:
        self.fault("delay", seconds=seconds, times=times, **details)

    def reorder_callbacks(self, times: int | None = None, **details: Any) -> None:
        self.fault("reorder", times=times, **details)

    def overlap_callbacks(self, times: int | None = None, **details: Any) -> None:
        """Send each callback at once, although the one before was not answered yet."""
        self.fault("overlap", times=times, **details)

    def filter_texts(self, code: int = 30007, times: int | None = None, **details: Any) -> None:
        """Let a carrier drop texts with this error code."""
        self.fault("carrier_filter", code=code, times=times, **details)

    def lose_webhooks(self, purpose: str, times: int | None = 1, **details: Any) -> None:
        self.fault("webhook_lost", purpose=purpose, times=times, **details)

    def slow_webhooks(
        self, seconds: float, purpose: str | None = None, times: int | None = 1, **details: Any
    ) -> None:
        """Delay the responses of our server by this number of simulated seconds."""
        self.fault("webhook_slow", seconds=seconds, purpose=purpose, times=times, **details)

    def set_account(self, **changes: Any) -> None:
        """Change the account, for example `status="suspended"` or `type="Trial"`; until the next reset."""
        (account,) = [one for one in self.get("/control/accounts") if one["sid"] == ACCOUNT_SID]
        config = {name: value for name, value in account.items() if "open_" not in name}
        self.request("PUT", "/control/accounts", json={**config, **changes})

    def set_timing(self, **seconds: float) -> None:
        """Change durations of the simulator, for example `hang_up=2` or `ring_buffer=5`; until the next reset."""
        self.request("PUT", "/control/timing", json=seconds)

    def requests_in_progress(self, *, at_most: bool = False) -> int:
        """How many requests of the account are in progress; `at_most`: the most that ever were at one moment."""
        (account,) = [one for one in self.get("/control/accounts") if one["sid"] == ACCOUNT_SID]
        return int(account["max_open_requests" if at_most else "open_requests"])

    def add_account(self, sid: str, auth_token: str, **settings: Any) -> None:
        """Add an account beside the first; until the next reset. Any caller number counts as its own."""
        account = {"sid": sid, "auth_token": auth_token, "owns_any_number": True, "calls_per_second": 1000.0}
        self.request("PUT", "/control/accounts", json={**account, **settings})

    def answer_429(self, times: int | None = 1, retry_after: float | None = None, **details: Any) -> None:
        self.fault("rate_limit", times=times, seconds=retry_after, **details)

    def answer_500(self, times: int | None = 1, creates: bool = False, **details: Any) -> None:
        self.fault("error_500", times=times, creates=creates, **details)

    def answer_503(self, times: int | None = 1, creates: bool = False, **details: Any) -> None:
        self.fault("error_503", times=times, creates=creates, **details)

    def time_out_before_creating(self, times: int | None = 1, hold: float = 30, **details: Any) -> None:
        self.fault("timeout_before", times=times, seconds=hold, **details)

    def time_out_after_creating(self, times: int | None = 1, hold: float = 30, **details: Any) -> None:
        self.fault("timeout_after", times=times, seconds=hold, **details)

    def reset_before_creating(self, times: int | None = 1, **details: Any) -> None:
        self.fault("reset_before", times=times, **details)

    def reset_after_creating(self, times: int | None = 1, **details: Any) -> None:
        self.fault("reset_after", times=times, **details)

    def slow_create(self, seconds: float, times: int | None = 1, **details: Any) -> None:
        self.fault("slow", seconds=seconds, times=times, **details)

    def callbacks_before_create_returns(
        self, event: str = "ringing", times: int | None = 1, **details: Any
    ) -> None:
        self.fault("early", event=event, times=times, **details)

    def list_lags(self, seconds: float, **details: Any) -> None:
        self.fault("list_lag", seconds=seconds, times=None, **details)
