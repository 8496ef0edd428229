"""The simulator as a process: startup, rejected arguments, stop and load."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.phones import Simulator, answer, busy
from tests.support.waiting import PATIENCE, wait_until

from .conftest import ANN, BOB, US, Caller

ROOT = Path(__file__).resolve().parents[3]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dispatch.dev.simulator", *arguments]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, stdin=subprocess.DEVNULL
    )


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.1", "example.com"])
def test_it_listens_on_loopback_only(host: str) -> None:
    refused = run("--host", host)
    assert refused.returncode == 2
    assert "loopback only" in refused.stderr


@pytest.mark.parametrize(
    ("config", "about"),
    [
        ({"colour": "red"}, "colour"),
        ({"accounts": [{"sid": "AC1"}]}, "sid"),
        ({"handsets": {"default": {"do": "sing"}}}, "sing"),
        ({"faults": [{"kind": "earthquake"}]}, "earthquake"),
    ],
)
def test_a_wrong_configuration_is_named_and_refused(tmp_path: Path, config: Any, about: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    refused = run("--config", str(tmp_path / "config.json"))
    assert refused.returncode == 2
    assert about in refused.stderr
    assert "Traceback" not in refused.stderr


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_simulator_stops_cleanly_during_activity(tmp_path: Path, how: signal.Signals) -> None:
    ready = tmp_path / "ready.json"
    command = [sys.executable, "-m", "dispatch.dev.simulator", "--ready-file", str(ready)]
    with subprocess.Popen(
        command, cwd=ROOT, stderr=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL
    ) as process:
        wait_until(ready.exists)
        base = json.loads(ready.read_text())["base_url"]
        sid = "AC" + "1".rjust(32, "0")
        form = {"To": ANN, "From": US, "Twiml": "<Response><Pause length='600'/></Response>"}
        account = {"sid": sid, "auth_token": "simulator-token", "owns_any_number": True}
        requests.put(f"{base}/control/accounts", json=account, timeout=PATIENCE).raise_for_status()
        url = f"{base}/2010-04-01/Accounts/{sid}/Calls.json"
        assert requests.post(url, data=form, auth=(sid, "simulator-token"), timeout=PATIENCE).status_code == 201
        streaming = requests.get(f"{base}/control/events", stream=True, timeout=PATIENCE)
        process.send_signal(how)
        _, log = process.communicate(timeout=PATIENCE)
        streaming.close()
    assert process.returncode == 0
    assert not ready.exists()
    assert "Traceback" not in log
    assert "never retrieved" not in log
    assert ANN not in log, "numbers are masked"


def test_leashed_simulator_ends_with_its_owner() -> None:
    simulator = Simulator.start()
    process = simulator._process
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(timeout=PATIENCE) == 0


def test_the_real_client_of_a_dead_simulator_gets_an_error_at_once() -> None:
    simulator = Simulator.start()
    client = simulator.client()
    assert simulator.stop() == 0
    with pytest.raises(requests.ConnectionError):
        client.calls.create(to=ANN, from_=US, twiml="<Response/>")


def test_changes_can_be_followed_as_a_stream(sim: Simulator, place: Caller) -> None:
    with requests.get(f"{sim.base_url}/control/events", stream=True, timeout=PATIENCE) as stream:
        sim.phone(ANN).will(busy(0.2))
        call = place()
        seen: list[dict[str, Any]] = []
        for line in stream.iter_lines(decode_unicode=True, chunk_size=1):
            if line.startswith("data: "):
                seen.append(json.loads(line[6:]))
                if seen[-1].get("status") == "busy":
                    break
    assert {change["sid"] for change in seen} == {call.sid}
    assert [change["version"] for change in seen] == sorted(change["version"] for change in seen)


def test_reset_ends_calls_without_a_trace(sim: Simulator, place: Caller) -> None:
    place().answer().hears("press 1")
    place(BOB)
    sim.lose_callbacks()
    received = len(place.ours.received)
    sim.reset()
    assert sim.calls() == []
    assert sim.get("/control/lines") == {}
    assert sim.get("/control/faults")["faults"] == []
    place(ANN).hang_up().told("no-answer")
    assert all(r.params["CallStatus"] != "completed" for r in place.ours.received[received:])


def test_burst_of_calls_is_handled(sim: Simulator, place: Caller) -> None:
    """Two hundred calls at once, each with its TwiML, a key and four callbacks."""
    sim.others_will(answer(after=1, press="1"))
    numbers = [f"+1602556{n:04}" for n in range(200)]
    with ThreadPoolExecutor(8) as pool:
        calls = list(pool.map(place, numbers))
    sim.until(lambda: sim.get("/control/state")["live"] == 0, PATIENCE, "all calls over")
    wait_until(lambda: place.ours.statuses().count("completed") == 200)
    assert {call["status"] for call in sim.calls()} == {"completed"}
    assert all(request.signed for request in place.ours.received)
    unheard = {call.sid for call in calls} - {request.params["CallSid"] for request in place.ours.to("/key")}
    assert not unheard, calls[[call.sid for call in calls].index(unheard.pop())].story()
    assert all(sim.creates_to(number) == 1 for number in numbers[:5])


def test_nothing_is_left_of_a_stopped_simulator() -> None:
    with Simulator.start() as simulator:
        pid = simulator._process.pid
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_simulator_needs_no_django() -> None:
    """No Django, no database driver, no provider's library: only an HTTP server and client."""
    script = "import sys, dispatch.dev.simulator.app; print({'django', 'psycopg', 'twilio'} & set(sys.modules))"
    alone = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE
    )
    assert alone.stdout.strip() == "set()", alone.stderr


def test_cut_connections_leave_no_trace_in_its_log(sim: Simulator, place: Caller) -> None:
    sim.reset_before_creating()
    sim.reset_after_creating()
    for _ in range(2):
        with pytest.raises(requests.ConnectionError):
            place()
    place().hang_up().told("no-answer")
    assert "Traceback" not in sim.log()
    assert "Error" not in sim.log()


def test_restart_keeps_the_address_and_never_reuses_ids() -> None:
    first = Simulator.start()
    before = first.client().calls.create(to=ANN, from_=US, twiml="<Response/>").sid
    first.stop()
    with Simulator.start(port=int(first.base_url.rsplit(":", 1)[1])) as second:
        assert second.base_url == first.base_url
        assert second.calls() == []
        after = second.client().calls.create(to=ANN, from_=US, twiml="<Response/>").sid
        assert after != before, "an application that stored the first call would mistake the second for it"
