"""Drive the simulated phone provider during the demo: accounts, phones and faults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import requests

TIMEOUT_S = 60.0  # far more than a busy machine needs


class Controls:
    """Call the simulator's control API at `base_url`. Every method raises requests.RequestException."""

    def __init__(self, base_url: str) -> None:
        self._base_url = f"{base_url}/control"
        self._session = requests.Session()
        self._session.trust_env = False

    def set_account(self, account: Mapping[str, Any]) -> None:
        self._request("PUT", "accounts", account)

    def set_handsets(self, handsets: Mapping[str, Any]) -> None:
        self._request("PUT", "handsets", handsets)

    def complaints(self) -> list[str]:
        """Return the errors that the simulated provider found in our requests and answers."""
        found = self._request("GET", "complaints")["complaints"]
        return [f"{complaint['about']}: {complaint['text']}" for complaint in found]

    def begin_outage(self) -> int:
        """Answer every request with 503 until `end_outage`. Return the fault's id."""
        return int(self._request("POST", "faults", {"kind": "error_503", "on": "any", "times": None})["id"])

    def end_outage(self, fault_id: int) -> None:
        self._request("DELETE", f"faults/{fault_id}")

    def call_back(self, phone: str, to: str) -> None:
        """Call `to` from `phone`, and press 1 when the prompt is over."""
        self._request("POST", f"phones/{quote(phone)}/call", {"to": to, "keys": [{"key": "1"}]})

    def text(self, phone: str, to: str, body: str) -> None:
        """Send a text from `phone` to `to`."""
        self._request("POST", f"phones/{quote(phone)}/text", {"to": to, "body": body})

    def _request(self, method: str, path: str, body: Any = None) -> Any:
        answer = self._session.request(method, f"{self._base_url}/{path}", json=body, timeout=TIMEOUT_S)
        answer.raise_for_status()
        return answer.json()
