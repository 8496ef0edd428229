"""A call to our number as the provider sends its webhooks, signed: for tests that choose their order."""

from __future__ import annotations

import itertools
from typing import NamedTuple
from xml.etree import ElementTree

import requests
from twilio.request_validator import RequestValidator

from dispatch.telephony import webhook_urls
from dispatch.telephony.models import InboundCall
from tests.harness.jobs import Floor

ATTESTED = "TN-Validation-Passed-A"
_sids = itertools.count(1)


class Pressed(NamedTuple):
    """The request for one answer: it can be sent again."""

    url: str
    fields: dict[str, str]


class CallBack:
    """A call from `phone`. `said`: the sentences of the last document; `listens`: it asks for keys."""

    def __init__(self, floor: Floor, phone: str, attestation: str = ATTESTED) -> None:
        self.floor = floor
        self.sid = f"CA{next(_sids):032x}"
        self._from, self._attestation = phone, attestation
        self.said: list[str] = []
        self._action = ""
        self._read(self._post(Pressed(webhook_urls.number_webhook(floor.number, "voice"), {})))

    @property
    def row(self) -> InboundCall:
        return InboundCall.objects.get(sid=self.sid)

    @property
    def listens(self) -> bool:
        return bool(self._action)

    @property
    def words(self) -> str:
        """Everything that the last document says."""
        return " ".join(self.said)

    def hears(self, words: str) -> CallBack:
        assert words.lower() in self.words.lower(), f"{words!r} is not in {self.words!r}"
        return self

    def has_not_heard(self, words: str) -> CallBack:
        assert words.lower() not in self.words.lower(), self.words
        return self

    def pressing(self, keys: str, state: str = "") -> Pressed:
        """The request that pressing these keys sends; `state` replaces the state of the prompt."""
        assert self._action, f"nobody listens after {self.words!r}"
        url = self._action
        if state:
            more = {"digits": 3} if state.startswith("late") else {}
            url = webhook_urls.number_webhook(
                self.floor.number, "gather", call=self.row.pk, step=1, keys="1234567890", state=state, **more
            )
        return Pressed(url, {"Digits": keys})

    def press(self, keys: str) -> CallBack:
        """Press the keys, and hear the next document."""
        return self.send(self.pressing(keys))

    def send(self, pressed: Pressed, expected: int = 200) -> CallBack:
        """Send a request, for the first time or again."""
        response = self._post(pressed)
        assert response.status_code == expected, response.text
        if expected == 200:
            self._read(response)
        return self

    def hang_up(self) -> None:
        """Report the end of the call."""
        url = webhook_urls.number_webhook(self.floor.number, "status")
        self._post(Pressed(url, {"CallStatus": "completed", "CallDuration": "9"}))

    def _post(self, pressed: Pressed) -> requests.Response:
        number = self.floor.number
        fields = {
            "CallSid": self.sid,
            "AccountSid": number.account.account_sid,
            "From": self._from,
            "To": str(number.phone),
            "CallStatus": "in-progress",
            "Direction": "inbound",
            **({"StirVerstat": self._attestation} if self._attestation else {}),
            **pressed.fields,
        }
        url = pressed.url.partition("#")[0]
        signature = RequestValidator(self.floor.sim.auth_token).compute_signature(url, fields)
        return requests.post(url, data=fields, headers={"X-Twilio-Signature": signature}, timeout=60)

    def _read(self, response: requests.Response) -> None:
        document = ElementTree.fromstring(response.content)  # noqa: S314
        gather = document.find("Gather")
        spoken = (document if gather is None else gather).iter("Say")
        self.said = ["".join(say.itertext()) for say in spoken]
        self._action = "" if gather is None else gather.attrib["action"]
        # Twilio's limits
        assert len(response.content) < 64_000
        assert all(len(sentence.encode()) <= 3000 for sentence in self.said)
