"""Check and prepare what a campaign's voice agent needs: its URL, its data, and what it leaves at its end."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

from yarl import URL

from dispatch.core.languages import gettext
from dispatch.leads.rules.script import disposition_pattern, value_of, variables_problem

# Data that every agent gets. A campaign's own names must differ.
GIVEN = ("lead_id", "call_id", "campaign", "external_id", "preview")
MAX_NAMES = 20
MAX_PARAMETER = 480  # characters of a name and its value; the provider takes 500
# The outcome of a lead whose agent failed, unless another one was reported.
UNREACHABLE = "agent_unreachable"
MAX_NOTES, MAX_AHEAD = 4000, timedelta(days=366)
_HOST = re.compile(r"(\*\.)?([a-z0-9_-]{1,63}\.)*[a-z0-9_-]{1,63}|\[[0-9a-f:.]+\]")


def url_problem(url: str, *, is_stream: bool, hosts: Iterable[str], allows_ws: bool = True) -> str:
    """Return what is wrong with the URL of an agent, or "".

    `hosts`: the hosts that the organization allows, such as example.com or *.example.com; none means any.
    `allows_ws`: whether the URL may be without encryption, in development.
    """
    try:
        parsed = URL(url)
        host = (parsed.host or "").lower()
    except (ValueError, TypeError):
        return gettext("Enter a URL such as wss://bots.example.com/quotes.")
    if parsed.scheme not in (("wss", "ws") if allows_ws else ("wss",)) or not host:
        return gettext("Enter a URL such as wss://bots.example.com/quotes.")
    if is_stream and parsed.query_string:
        return gettext("The URL of an agent that speaks audio can't have a query. Its data comes as parameters.")
    allowed = list(hosts)
    if allowed and not any(_matches(host, each) for each in allowed):
        return gettext("Your organization allows voice agents only at {hosts}.").format(hosts=", ".join(allowed))
    return ""


def _matches(host: str, allowed: str) -> bool:
    return host.endswith(allowed[1:]) if allowed.startswith("*.") else host == allowed


def hosts_problem(hosts: Iterable[str]) -> str:
    """Return what is wrong with an organization's list of hosts, or ""."""
    wrong = [host for host in hosts if not _HOST.fullmatch(host)]
    return (
        gettext("“{value}” is not a host. Enter hosts such as bots.example.com or *.example.com.").format(
            value=wrong[0]
        )
        if wrong
        else ""
    )


def names_problem(names: list[str]) -> str:
    """Return what is wrong with the names of the data for an agent, or ""."""
    if len(names) > MAX_NAMES:
        return gettext("At most {count} names.").format(count=MAX_NAMES)
    if taken := next((name for name in names if name in GIVEN), ""):
        return gettext("Remove {name}: the agent always gets it.").format(name=taken)
    return variables_problem(names)


def parameters(
    given: Mapping[str, Any], names: Iterable[str], data: Mapping[str, Any]
) -> tuple[tuple[str, str], ...]:
    """Return the parameters of an agent: `given`, then the lead's data with these names, if it has any."""
    values = {name: str(value) for name, value in given.items()}
    values |= {name: value for name in names if (value := value_of(data, name))}
    return tuple((name, value[: MAX_PARAMETER - len(name)]) for name, value in values.items() if value)


def read_handoff(text: str, now: datetime) -> dict[str, Any]:
    """Return what an agent left at its end: valid values of disposition, notes and call_back_at.

    `text`: a JSON object with these names. Anything else is ignored, because the call goes on.
    """
    try:
        given = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(given, dict):
        return {}
    found: dict[str, Any] = {}
    disposition, notes = given.get("disposition"), given.get("notes")
    if isinstance(disposition, str) and re.fullmatch(disposition_pattern, disposition):
        found["disposition"] = disposition
    if isinstance(notes, str) and notes:
        found["notes"] = notes.replace("\0", "").encode(errors="replace").decode()[:MAX_NOTES]
    if (at := _moment(given.get("call_back_at"))) is not None and now < at < now + MAX_AHEAD:
        found["call_back_at"] = at
    return found


def _moment(text: Any) -> datetime | None:
    try:
        moment = datetime.fromisoformat(text)
    except (TypeError, ValueError):
        return None
    return moment if moment.tzinfo is not None else None
