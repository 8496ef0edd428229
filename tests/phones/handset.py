"""A phone and the calls that reach it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from tests.support.waiting import PATIENCE

from .behaviours import Behaviour

if TYPE_CHECKING:
    from .simulator import Simulator

BEFORE_RINGING = ("queued", "initiated")


class PhoneCall:
    """One call seen from the phone. Methods that act or wait return the call, so that they read as a sentence."""

    def __init__(self, sim: Simulator, sid: str) -> None:
        self._sim = sim
        self.sid = sid

    @property
    def now(self) -> dict[str, Any]:
        """All that is known about it: status, said, keys, webhooks, story, ..."""
        return self._sim.get(f"/control/calls/{self.sid}")

    @property
    def status(self) -> str:
        return str(self.now["status"])

    @property
    def said(self) -> str:
        """All words heard so far."""
        return " ".join(words["text"] for words in self.now["said"])

    @property
    def statuses(self) -> list[str]:
        return [item["status"] for item in self.now["statuses"]]

    @property
    def is_manual(self) -> bool:
        """Whether the phone waits for the test, rather than following a script."""
        return bool(self.now["behaviour"].get("do") == "manual")

    def callbacks(self, status: str | None = None) -> list[dict[str, Any]]:
        """The status callbacks attempted, each with `params` and the `status` code of our answer."""
        return [
            hook
            for hook in self.now["webhooks"]
            if hook["purpose"] == "status" and status in (None, hook["params"]["CallStatus"])
        ]

    def story(self) -> str:
        """The whole history, for a person."""
        data = self.now
        return "\n".join([f"call {self.sid} {data['from']} > {data['to']}: {data['status']}", *data["story"]])

    def answer(self) -> PhoneCall:
        """Pick up, as soon as it rings."""
        return self._while_ringing("answer")._until(
            lambda c: c["status"] == "in-progress" or c["over"], PATIENCE, "answered"
        )

    def press(self, keys: str) -> PhoneCall:
        """Press keys once somebody listens for them."""
        self._until(lambda c: c["asking"] or c["over"], PATIENCE, f"listening for keys, to press {keys}")
        return self._act("press", keys=keys)

    def press_unasked(self, keys: str) -> PhoneCall:
        """Press keys now, whether anybody listens or not."""
        return self._act("press", keys=keys)

    def hang_up(self) -> PhoneCall:
        """Hang up; if the call is over by itself already, there is nothing to do."""
        return self if self.now["over"] else self._act("hang_up", over_is_fine=True)

    def decline(self) -> PhoneCall:
        return self._while_ringing("reject")

    def is_busy(self) -> PhoneCall:
        return self._while_ringing("busy")

    def hears(self, words: str, within: float = PATIENCE) -> PhoneCall:
        """Wait until that is said (upper and lower case alike)."""

        def heard(data: dict[str, Any]) -> bool:
            return words.lower() in " ".join(item["text"] for item in data["said"]).lower()

        self._until(lambda c: heard(c) or c["over"], within, f"said {words!r}")
        assert heard(self.now), f"the call ended before {words!r} was said\n{self.story()}"
        return self

    def has_not_heard(self, words: str) -> PhoneCall:
        """It was not said up to now."""
        assert words.lower() not in self.said.lower(), f"{words!r} was said\n{self.story()}"
        return self

    def ended(self, status: str = "completed", within: float = PATIENCE) -> PhoneCall:
        """Wait until it is over, and check how: completed, busy, failed, no-answer, canceled."""
        self._until(lambda c: c["over"], within, "over")
        assert self.status == status, f"expected the call to end as {status}\n{self.story()}"
        return self

    def told(self, status: str, within: float = PATIENCE) -> PhoneCall:
        """Wait until the callback with this CallStatus, or the request for the prompt, was answered with 2xx."""

        def done(data: dict[str, Any]) -> bool:
            return any(
                hook["purpose"] in ("status", "twiml")
                and hook["params"]["CallStatus"] == status
                and 200 <= hook.get("status", 0) < 300
                for hook in data["webhooks"]
            )

        return self._until(done, within, f"reported as {status}")

    def _while_ringing(self, action: str) -> PhoneCall:
        """Does it as soon as the phone rings; fails at once, with the story, when the ringing is over already."""
        self._until(lambda c: c["status"] not in BEFORE_RINGING, PATIENCE, f"ringing, to {action}")
        return self._act(action)

    def _act(self, action: str, *, over_is_fine: bool = False, **data: Any) -> PhoneCall:
        answer_ = self._sim.request("POST", f"/control/calls/{self.sid}/{action}", json=data, check=False)
        if over_is_fine and self.now["over"]:
            return self
        assert answer_.ok, f"{answer_.json()['error']}\n{self.story()}"
        return self

    def _until(self, condition: Callable[[dict[str, Any]], bool], within: float, wanted: str) -> PhoneCall:
        self._sim.until(
            lambda: condition(self.now), within, lambda: f"the call was expected to be {wanted}\n{self.story()}"
        )
        return self


class Phone:
    """A person's phone number."""

    def __init__(self, sim: Simulator, number: str) -> None:
        self._sim = sim
        self.number = number
        self._seen: set[str] = set()

    def will(self, *behaviours: Behaviour) -> Phone:
        """What it does when it rings: one per call, and the last one from then on."""
        self._sim.request("PUT", "/control/handsets", json={self.number: list(behaviours)})
        return self

    def texts_will(self, do: str, error_code: int | None = None) -> Phone:
        """Set the outcome of texts to it: delivered, undelivered, failed, silent, refuse."""
        name = "code" if do == "refuse" else "error_code"
        fate: dict[str, Any] = {"do": do} if error_code is None else {"do": do, name: error_code}
        self._sim.request("PUT", "/control/texts", json={self.number: fate})
        return self

    def rings(self, within: float = PATIENCE) -> PhoneCall:
        """The next call to this phone that no earlier `rings` has returned, once it rings (or is past that)."""

        def new_call() -> dict[str, Any] | None:
            calls = [c for c in self._sim.calls(to=self.number) if c["sid"] not in self._seen]
            rung = [c for c in calls if any(s["status"] == "ringing" for s in c["statuses"])]
            return rung[0] if rung else None

        found = self._sim.until(new_call, within, lambda: f"{self.number} did not ring\n{self._sim.story()}")
        assert found is not None
        self._seen.add(found["sid"])
        return PhoneCall(self._sim, found["sid"])

    def did_not_ring(self) -> Phone:
        """Not once up to now."""
        calls = self._sim.calls_to(self.number)
        assert not calls, f"{self.number} was called\n{self._sim.story()}"
        return self

    def calls_us(self, number: str, press: str = "", attestation: str = "A") -> PhoneCall:
        """Call one of our numbers (see `add_number`). A forged caller id has no attestation A."""
        data: dict[str, Any] = {"to": number, "attestation": attestation}
        if press:
            data["keys"] = [{"key": press}]
        made = self._sim.request("POST", f"/control/phones/{quote(self.number)}/call", json=data).json()
        return PhoneCall(self._sim, made["sid"])

    def texts_us(self, number: str, body: str) -> dict[str, Any]:
        """Send a text to one of our numbers."""
        data = {"to": number, "body": body}
        return dict(self._sim.request("POST", f"/control/phones/{quote(self.number)}/text", json=data).json())

    def gets_text(self, words: str = "", within: float = PATIENCE) -> dict[str, Any]:
        """Wait for a text to this phone with these words in it; its newest such one."""

        def arrived() -> dict[str, Any] | None:
            found = [m for m in self._sim.messages(to=self.number) if words.lower() in m["body"].lower()]
            return found[-1] if found else None

        found = self._sim.until(arrived, within, lambda: f"no text with {words!r} to {self.number}")
        assert found is not None
        return found
