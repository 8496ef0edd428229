"""Execute TwiML on an answered call: speak, listen, request the next document."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urljoin

from . import media
from .agents import connect
from .callbacks import common_params, fire_detection
from .calls import BUSY, CANCELED, COMPLETED, FAILED, NO_ANSWER, Call, Over, Signal
from .dial import dial
from .twiml import TwimlError, Verb, parse
from .webhooks import Reply

if TYPE_CHECKING:
    from .world import World

PLAY_S = 3.0
MAX_DOCUMENTS = 200
XML_TYPES = {"text/xml", "application/xml", "text/html"}


@dataclass(frozen=True)
class Next:
    """Name the source of the next document: a URL to request, or a document given with the call."""

    url: str
    method: str = "POST"
    purpose: str = "twiml"
    digits: str | None = None
    finished_on: str = ""
    document: str = ""
    params: tuple[tuple[str, str], ...] = ()
    failed_url: str = ""


class Redirected(Exception):
    """The REST API replaced the document during the call."""

    def __init__(self, source: Next) -> None:
        self.source = source
        super().__init__(source.url)


class Voice:
    """Run one conversation: documents one after another, until none is left or someone hangs up."""

    def __init__(self, world: World, call: Call) -> None:
        self.world = world
        self.call = call
        self._fallback_used = False
        self._answer_inbound = call.direction == "inbound"

    async def run(self, source: Next) -> None:
        """Run the documents; raise Over if the call ends earlier."""
        current: Next = source
        documents = 0
        while True:
            documents += 1
            try:
                if documents > MAX_DOCUMENTS:
                    raise TwimlError(12200, f"more than {MAX_DOCUMENTS} documents in one call")
                verbs, base = await self._document(current)
                following = await self._play(verbs, base)
            except Redirected as redirected:
                following = redirected.source
            except TwimlError as error:
                following = self._trouble(error, current)
            if following is None:
                return
            current = following

    async def detect(self) -> None:
        """Detect whether a person or a machine has answered. Nothing is said meanwhile."""
        await self._listen(self.world.timing.machine_detection, listening=False)
        self._set_answered_by()

    def detect_later(self) -> None:
        """Detect it while the document runs, and report it in a callback. A call that ends earlier has none."""

        def report() -> None:
            self._set_answered_by()
            fire_detection(self.world, self.call, self.world.timing.machine_detection)

        self.call.later(self.world.timing.machine_detection, report)

    def _set_answered_by(self) -> None:
        call = self.call
        call.answered_by = call.script.answered_by if call.script is not None else "unknown"
        if call.order.machine_detection == "DetectMessageEnd" and call.answered_by == "machine_start":
            call.answered_by = "machine_end_beep"
        call.note(f"answered by {call.answered_by}")

    async def _document(self, source: Next) -> tuple[list[Verb], str]:
        if source.document:
            return parse(source.document), source.url
        params = common_params(self.call, self.call.status)
        params.update(source.params)
        if source.digits is not None:
            params["Digits"] = source.digits
            params["msg"] = "Gather End"
            if source.finished_on:
                params["FinishedOnKey"] = source.finished_on
        if source.purpose == "fallback":
            params["ErrorCode"] = str(self.call.error_code)
            params["ErrorUrl"] = source.failed_url
        reply = await self._ask(source, params)
        if reply.error:
            raise TwimlError(11200 if reply.error in {"ct", "rt"} else 21205, f"{source.url}: {reply.error}")
        if not reply.ok:
            raise TwimlError(11200, f"{source.url} answered {reply.status}")
        if not reply.body.strip():
            return [], source.url
        if reply.content_type not in XML_TYPES:
            raise TwimlError(12300, f"{source.url} answered with content type {reply.content_type!r}")
        return parse(reply.body), source.url

    async def _ask(self, source: Next, params: dict[str, str]) -> Reply:
        """Post to the server. Meanwhile the person may hang up or press keys, which are ignored."""
        task = self.world.spawn(self.world.post(self.call, source.url, source.method, params, source.purpose))
        task.add_done_callback(lambda _: self.call.signal("fetched"))
        while True:
            signal = await self.call.wait(None)
            if signal is not None and signal.kind == "fetched" and task.done():
                return task.result()
            self._handle(signal, listening=False)

    def _trouble(self, error: TwimlError, source: Next) -> Next:
        """Handle a document that could not be fetched or executed: the fallback once, otherwise the call fails."""
        call = self.call
        call.problems.append(f"{error.code}: {error}")
        call.note(f"problem {error.code}: {error}")
        call.error_code = error.code
        if error.code != 11200:
            self.world.complain("twiml", f"{error.code} {error}", call)
        if call.order.fallback_url and not self._fallback_used:
            self._fallback_used = True
            return Next(call.order.fallback_url, call.order.fallback_method, "fallback", failed_url=source.url)
        # An unreachable server ends the conversation; a document that no provider would accept fails the call.
        raise Over(COMPLETED if error.code == 11200 else FAILED, "simulator", error_code=error.code)

    async def _play(self, verbs: list[Verb], base: str) -> Next | None:
        for verb in verbs:
            if verb.name == "Reject" and self._answer_inbound:
                raise Over(BUSY if verb.attributes.get("reason") == "busy" else NO_ANSWER, "twiml")
            if verb.name == "Reject":
                raise TwimlError(12200, "Reject is for inbound calls that were not yet answered")
            if self._answer_inbound:
                self._answer_inbound = False
                self.world.engine.pick_up(self.call)
            if verb.name == "Hangup":
                raise Over(COMPLETED, "twiml")
            if verb.name == "Redirect":
                return Next(urljoin(base, verb.text), verb.method(), "redirect")
            if verb.name == "Dial":
                following = await dial(self, verb, base)
                if following is not None:
                    return following
            elif verb.name == "Connect":
                following = await connect(self, verb, base)
                if following is not None:
                    return following
            elif verb.name == "Gather":
                following = await self._gather(verb, base)
                if following is not None:
                    return following
            else:
                await self._speak(verb, base, listening=False)
        return None

    async def _speak(self, verb: Verb, base: str, listening: bool) -> str:
        """Say, Play or Pause. Return the key pressed meanwhile if `listening`. A Play fetches its file first."""
        if verb.name == "Pause":
            return await self._listen(float(verb.number("length", 1)), listening)
        times = verb.number("loop", 1) or 1000
        call, script = self.call, self.call.script
        text = verb.text if verb.name == "Say" else f"[plays {verb.text or verb.attributes['digits']}]"
        speed = self.world.timing.characters_per_second
        duration = max(0.3, len(text) / speed) if verb.name == "Say" else PLAY_S
        is_file = verb.name == "Play" and bool(verb.text)
        if is_file:
            duration = await media.fetch_audio(self, verb, base)
        for _ in range(times):
            words = {
                "at": call.age(),
                "text": text,
                "voice": verb.attributes.get("voice", ""),
                "language": verb.attributes.get("language", ""),
                "ssml": verb.ssml,
                "complete": False,
            }
            call.said.append(words)
            call.note(f"says: {text}")
            if script is not None:
                script.saying(text, duration)
            key = await self._listen(duration, listening)
            if key:
                return key
            words["complete"] = True
            if is_file:
                media.record_completion(call)
            if script is not None:
                script.heard(text)
        return ""

    async def _gather(self, verb: Verb, base: str) -> Next | None:
        """Post digits to the action. Return None if nothing was pressed and the document continues."""
        call = self.call
        dtmf = "dtmf" in verb.attributes.get("input", "dtmf").split()
        finish = verb.attributes.get("finishOnKey", "#")
        want = verb.number("numDigits", 0)
        patience = self.world.patience(call, verb.number("timeout", 5))
        digits, finished_on, key = "", "", ""
        call.asking = dtmf
        try:
            for prompt in verb.inside:
                key = await self._speak(prompt, base, listening=dtmf)
                if key:
                    break
            if not key:
                call.note(f"listens for {patience:g} s")
                if call.script is not None:
                    call.script.asked()
                key = await self._listen(patience, dtmf)
            while key:
                if finish and key == finish:
                    finished_on = key
                    break
                digits += key
                if len(digits) == want:
                    break
                key = await self._listen(patience, dtmf)
        finally:
            call.asking = False
        if not digits and not verb.flag("actionOnEmptyResult"):
            return None
        action = urljoin(base, verb.attributes.get("action", base))
        return Next(action, verb.method(), "gather", digits, finished_on)

    async def _listen(self, seconds: float, listening: bool) -> str:
        """Wait that many simulated seconds. Return the first key pressed if `listening`, else an empty string."""
        until = self.call.clock.now() + seconds
        while True:
            signal = await self.call.wait(until)
            if signal is None:
                return ""
            key = self._handle(signal, listening)
            if key:
                return key

    def handle(self, signal: Signal | None, *, listening: bool = False) -> str:
        """Handle a signal, and return the key that it is, if something listens. Raises Over or Redirected."""
        return self._handle(signal, listening)

    def _handle(self, signal: Signal | None, listening: bool) -> str:
        if signal is None or signal.kind in {"fetched", "leg"}:
            return ""
        call = self.call
        if signal.kind == "key":
            call.keys.append({"at": call.age(), "key": signal.key, "by": signal.by, "used": listening})
            call.note(f"key {signal.key} pressed" + ("" if listening else ", but the call was not listening"))
            return signal.key if listening else ""
        if signal.kind == "redirect" and call.next_document is not None:
            url, method, document = call.next_document
            call.next_document = None
            call.note("the API replaces the document")
            raise Redirected(Next(url, method, "redirect", document=document))
        if signal.kind in {"hang_up", "complete"}:
            canceled = signal.kind == "hang_up" and self._answer_inbound
            raise Over(CANCELED if canceled else COMPLETED, signal.reason or signal.by)
        return ""
