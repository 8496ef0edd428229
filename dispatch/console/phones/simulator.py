"""Asking the simulator."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import requests
from django.conf import settings

TIMEOUT_S = 5.0


class NotThere(Exception):
    """The simulator does not answer."""


class Refused(Exception):
    """It does not do that; the text says why."""


def phones() -> tuple[int, dict[str, dict[str, Any]]]:
    """(version, number → its state). Raises NotThere."""
    answer = _ask("GET", "/control/phones")
    return int(answer["version"]), answer["phones"]


def changed_since(version: int, wait_s: float) -> tuple[int, set[str]]:
    """(version, the numbers that changed since), within so many seconds; "*" for all. Raises NotThere."""
    answer = _ask("GET", f"/control/changes?after={version}&wait={wait_s:g}", wait_s + TIMEOUT_S)
    news = answer["changes"]
    if answer["version"] < version:  # it was started anew
        return int(answer["version"]), {"*"}
    return int(answer["version"]), {str(one.get("phone", "*")) for one in news if one["kind"] != "complaint"}


def act_on_call(sid: str, action: str, **data: str) -> None:
    """answer, reject, hang_up, press. Raises NotThere, Refused."""
    _ask("POST", f"/control/calls/{quote(sid)}/{action}", json=data)


def act_on_phone(number: str, action: str, **data: Any) -> None:
    """take, release, call, text. Raises NotThere, Refused."""
    _ask("POST", f"/control/phones/{quote(number)}/{action}", json=data)


def _ask(method: str, path: str, timeout_s: float = TIMEOUT_S, **more: Any) -> Any:
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
