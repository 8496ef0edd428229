"""Call the simulator's control API."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import requests
from django.conf import settings

TIMEOUT_S = 5.0


class NotThere(Exception):
    """The simulator does not answer."""


class Refused(Exception):
    """The simulator rejected the action. The text says why."""


def phones() -> tuple[int, dict[str, dict[str, Any]]]:
    """Return (version, number → its state). Raise NotThere."""
    answer = _request("GET", "/control/phones")
    return int(answer["version"]), answer["phones"]


def changed_since(version: int, wait_s: float) -> tuple[int, set[str]]:
    """Return (version, numbers changed since then), waiting up to `wait_s` seconds. Raise NotThere.

    The number "*" stands for all phones.
    """
    answer = _request("GET", f"/control/changes?after={version}&wait={wait_s:g}", wait_s + TIMEOUT_S)
    if answer["version"] < version:  # the simulator was restarted
        return int(answer["version"]), {"*"}
    return int(answer["version"]), {
        str(change.get("phone", "*")) for change in answer["changes"] if change["kind"] != "complaint"
    }


def act_on_call(sid: str, action: str, **data: str) -> None:
    """Act on a call: answer, reject, hang_up or press. Raise NotThere, Refused."""
    _request("POST", f"/control/calls/{quote(sid)}/{action}", json=data)


def act_on_phone(number: str, action: str, **data: Any) -> None:
    """Act on a phone: take, release, call or text. Raise NotThere, Refused."""
    _request("POST", f"/control/phones/{quote(number)}/{action}", json=data)


def _request(method: str, path: str, timeout_s: float = TIMEOUT_S, **more: Any) -> Any:
    with requests.Session() as session:
        session.trust_env = False
        try:
            answer = session.request(method, f"{settings.SIMULATOR_URL}{path}", timeout=timeout_s, **more)
            body = answer.json()
        except (requests.RequestException, ValueError) as error:
            raise NotThere(type(error).__name__) from error
    if not answer.ok:
        raise Refused(str(body.get("error", answer.status_code)))
    return body
