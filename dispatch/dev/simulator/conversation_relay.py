"""Speak the provider's ConversationRelay: the agent sends and receives text, and the provider speaks and listens.

To the agent: `setup`, `prompt` (what the person said), `dtmf`, `interrupt`, `error`. From the agent: `text`
(tokens, spoken when the `last` has come), `play`, `sendDigits`, `language`, `end`.
"""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING, Any

from .agents import AgentSession
from .twiml import Verb

if TYPE_CHECKING:
    from .voice import Voice

PLAY_S = 3.0
UNABLE_TO_CONNECT = "64102"
MAX_HANDOFF = 8_000


class RelaySession(AgentSession):
    """One session of ConversationRelay."""

    def __init__(self, voice: Voice, noun: Verb) -> None:
        super().__init__(voice, noun)
        self.sid = f"VX{uuid.uuid4().hex}"
        self._began = self.call.clock.now()
        self._tokens = ""
        self._queue: list[dict[str, Any]] = []
        self._speaking: tuple[dict[str, Any], float, float] | None = None  # words, begin, duration
        self._generation = 0
        self._status, self._handoff = "completed", ""

    def begin(self) -> None:
        call = self.call
        self.send({
            "type": "setup", "sessionId": self.sid, "callSid": call.sid, "parentCallSid": call.parent_sid,
            "accountSid": call.account_sid, "applicationSid": None, "from": call.from_, "to": call.to,
            "forwardedFrom": "", "callerName": "", "direction": call.direction, "callType": "PSTN",
            "callStatus": call.status.upper(), "customParameters": self.parameters,
        })  # fmt: skip
        if greeting := self.noun.attributes.get("welcomeGreeting"):
            self._say(greeting)

    def receive(self, message: dict[str, Any]) -> None:
        kind = message.get("type")
        if kind == "text":
            self._tokens += str(message.get("token", ""))
            if message.get("last"):
                text, self._tokens = self._tokens, ""
                self._say(text)
        elif kind == "play":
            self._say(f"[plays {message.get('source', '')}]", PLAY_S)
        elif kind == "end":
            self._status, self._handoff = "ended", str(message.get("handoffData") or "")[:MAX_HANDOFF]
            self._incoming.append(None)
            self.call.signal("agent")
        elif kind in ("sendDigits", "language"):
            self.call.note(f"{kind} {json.dumps(message)}")
        else:
            self.complain(f"unknown type {kind!r}")
            self.send({"type": "error", "description": f"Invalid message received: {kind}"})

    def pressed(self, key: str) -> None:
        self._interrupt()
        if self.noun.flag("dtmfDetection"):
            self.send({"type": "dtmf", "digit": key})

    def spoken(self, text: str) -> None:
        self._interrupt()
        language = self.noun.attributes.get("language", "en-US")
        self.send({"type": "prompt", "voicePrompt": text, "lang": language, "last": True})

    async def report(self, event: str) -> None:
        if event == "error":
            self._status = "failed"

    def result(self) -> dict[str, str]:
        seconds = max(0, round(self.call.clock.now() - self._began))
        params = {"SessionId": self.sid, "SessionStatus": self._status, "SessionDuration": str(seconds)}
        if self._handoff:
            params["HandoffData"] = self._handoff
        if self._status == "failed":
            params |= {"ErrorCode": UNABLE_TO_CONNECT, "ErrorMessage": f"Unable to connect: {self.error}"}
        return params

    def _say(self, text: str, seconds: float | None = None) -> None:
        if not text.strip():
            return
        duration = max(0.3, len(text) / self.world.timing.characters_per_second) if seconds is None else seconds
        language = self.noun.attributes.get("language", "")
        self._queue.append({"text": text, "voice": "", "language": language, "ssml": "", "complete": False,
                            "seconds": duration})  # fmt: skip
        if self._speaking is None:
            self._next()

    def _next(self) -> None:
        """Speak the next text, if there is one and the person may still hear it."""
        self._speaking = None
        if not self._queue or not self.is_open:
            return
        words = self._queue.pop(0)
        duration = words.pop("seconds")
        words["at"] = self.call.age()
        self.call.said.append(words)
        self.call.note(f"the agent says: {words['text']}")
        self._speaking = words, self.call.clock.now(), duration
        script, generation = self.call.script, self._generation
        if script is not None:
            script.saying(words["text"], duration)
        self.call.later(duration, lambda: self._spoken_out(generation))

    def _spoken_out(self, generation: int) -> None:
        if generation != self._generation or self._speaking is None or not self.is_open:
            return
        words = self._speaking[0]
        words["complete"] = True
        self._next()
        if self.call.script is not None:
            self.call.script.heard(words["text"])
            if self._speaking is None:
                self.call.script.asked()

    def _interrupt(self) -> None:
        """Stop speaking because the person spoke or pressed a key, and report to the agent what was spoken."""
        if self._speaking is None:
            return
        words, began, duration = self._speaking
        passed = self.call.clock.now() - began
        said = words["text"][: round(len(words["text"]) * min(1.0, passed / duration))]
        self._generation += 1
        self._speaking = None
        self._queue.clear()
        self.send({
            "type": "interrupt", "utteranceUntilInterrupt": said, "durationUntilInterruptMs": round(passed * 1000)
        })  # fmt: skip
