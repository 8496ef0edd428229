"""Send each page and endpoint the worst query strings and bodies under 1 MB, and measure what a request costs.

`Walk.addresses` has one address of every URL pattern. `Walk.names` observes which parameters a view reads, so that
hostile values reach its code. Every request runs in a transaction that is rolled back.
"""

from __future__ import annotations

import contextlib
import copy
import json
import re
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from django.apps import apps
from django.db import transaction
from django.http import QueryDict
from django.test import Client
from django.urls import URLResolver, get_resolver

from dispatch.capacity.models import OutboundNumber
from dispatch.console.portal.session import COOKIE as PORTAL_COOKIE
from dispatch.jobs import signed_links
from dispatch.jobs.models import Job, Offer, Submission
from dispatch.leads.models import Campaign, Lead
from dispatch.outbox.models import Endpoint, Message, MessageGroup
from dispatch.schedules.models import Run, Schedule
from dispatch.technicians.models import Technician
from dispatch.telephony.models import Call, Text
from notifications.models import Notification
from tests.support.tenant_rows import ROWS
from tests.support.tenants import Tenant

MAX_CPU_S, MAX_MEMORY, MAX_SERVER_ERROR = 1.0, 100 * 2**20, 500
MEASUREMENTS = 3  # of a request that was too slow: the machine's other work inflates CPU time
SIZE = 900_000
QUERY_SIZE = 30_000  # the web process refuses longer headers

_MODELS = {
    "job_id": Job, "submission_id": Submission, "technician_id": Technician, "campaign_id": Campaign,
    "lead_id": Lead, "notification_id": Notification, "group_id": MessageGroup, "message_id": Message,
    "endpoint_id": Endpoint, "schedule_id": Schedule, "run_id": Run, "call_id": Call, "text_id": Text,
    "number_id": OutboundNumber,
}  # fmt: skip
_WORDS = {"action": "assign", "provider": "twilio", "kind": "status", "name": "x", "column": "pending"}
_PARAMETER = re.compile(r"<(?:\w+:)?(\w+)>|\(\?P<(\w+)>[^)]*\)")
# Sign-out ends the session of the walk; RQ's pages are a library's, for superusers only.
_LEFT_OUT = ("admin/rq/", "admin/logout", "account/logout", "demo-receiver/", "phones/")
# Parts of the walk, each with the beginnings of its addresses; "pages" are all others.
AREAS = {
    "admin of accounts and telephony": ("/admin/accounts/", "/admin/telephony/"),
    "admin of jobs and technicians": ("/admin/jobs/", "/admin/technicians/"),
    "admin of leads": ("/admin/leads/", "/admin/capacity/"),
    "admin of outbox": ("/admin/outbox/",),
    "admin of schedules": ("/admin/schedules/", "/admin/notifications/"),
    "rest of the admin": ("/admin/",),
    "API of A to L": tuple(f"/api/v1/{letter}" for letter in "abcdefghijkl"),
    "rest of the API": ("/api/",),
    "pages": ("/",),
}


def area_of(address: str) -> str:
    """Return the first area whose addresses begin like this one."""
    return next(area for area, beginnings in AREAS.items() if address.startswith(beginnings))


def _values(size: int) -> dict[str, str]:
    """Return hostile texts of this size by name."""
    return {
        "letters": "a" * size,
        "open brackets": "(" * size,
        "regex": "(a+)+" * (size // 5) + "$",
        "nested lists": "[" * size,
        "nested objects": '{"a":' * (size // 5),
        "lists": f"[{'[],' * (size // 3 - 1)}[]]",
        "digits": "9" * size,
        "unicode digits": "٣" * (size // 2),
        "spaces": " a" * (size // 2),
        "commas": "1," * (size // 2),
        "lines": "a,b\n" * (size // 4),
        "columns": ",".join(f"c{number}" for number in range(size // 7)),
        "marks": "e\u0301" * (size // 3),
        "dots": "a." * (size // 2),
        "addresses": "a@b.co," * (size // 7),
    }


VALUES = _values(SIZE)
# A request that is refused at once, before its parameters are read, costs what parsing costs: these show it.
SHAPES = {name: VALUES[name] for name in ("letters", "lists", "commas")}
REFUSED = (301, 302, 401, 403, 404, 405)
# Parameters that the same code of Django reads on every page of the admin.
COMMON = frozenset({"_facets", "_popup", "_to_field", "_source_model", "_changelist_filters", "p", "all", "e"})
ENOUGH = 3  # pages on which a common parameter is tried
# Short values that number, date, id and zone parsers often do not expect.
ODD = [
    "²", "١٢", "-1", "0", "9" * 30, "9" * 5000, "1e999", "NaN", "inf", "1_0", "0x1f", "\U0001f600", "2026-02-30",
    "9999-12-31T23:59:59+23:59", "0001-01-01", "2026-11-22T00:00:00+99:99", "24:00", "../../etc/passwd",
    "Etc/../UTC", "America/" + "x" * 300, "'\"<>", "%00", "a" * 5000, "[" * 2000, "null", "{}", "[]", "true",
    "1,2,,3", "+1", "\u202e", "..", "__class__", "-", "%", "\\",
]  # fmt: skip


@dataclass
class Cost:
    """What one request cost: CPU seconds of this process, and how much memory it held at its peak."""

    status: int
    cpu_s: float
    memory: int
    error: str = ""

    def problem(self) -> str:
        """Return what is wrong with it, or an empty string."""
        if self.status >= MAX_SERVER_ERROR:
            return f"status {self.status} {self.error}"
        if self.cpu_s > MAX_CPU_S:
            return f"{self.cpu_s:.1f} s"
        return f"{self.memory // 2**20} MiB" if self.memory > MAX_MEMORY else ""


@dataclass
class Walk:
    """Requests of one person of a tenant (None: anonymous), or of a receiver in its portal (uid and key)."""

    tenant: Tenant
    person: Any = None
    portal: tuple[str, str] | None = None
    problems: list[str] = field(default_factory=list)
    tried: int = 0
    slowest: tuple[float, str] = (0.0, "")
    largest: tuple[int, str] = (0, "")
    common: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.client = Client(raise_request_exception=False, headers={"HX-Request": "true"})
        if self.person is not None:
            self.tenant.sign_in(self.client, self.person)
        if self.portal:
            self.client.cookies[PORTAL_COOKIE] = self.portal[1]
        self._cookies = copy.deepcopy(self.client.cookies)

    def addresses(self, *, but: tuple[str, ...] = ()) -> list[str]:
        """Return an address of every URL pattern, with ids of the tenant's rows."""
        return sorted(
            {
                self._fill(path, view)
                for path, view in _paths(get_resolver())
                if not path.startswith((*_LEFT_OUT, *but))
            }
        )

    def _fill(self, path: str, view: Any) -> str:
        rows = getattr(getattr(view, "cls", None), "queryset", None)  # of an endpoint of the API
        model = re.match(r"admin/(\w+)/(\w+)/", path)

        def value(match: re.Match[str]) -> str:
            name = match[1] or match[2]
            if name == "object_id" and model:
                of = apps.get_model(model[1], model[2])
                return str(self.tenant.row(of).pk) if of in ROWS else "1"
            if name == "token":
                return self._token(path)
            if name == "pk" and rows is not None and rows.model in ROWS:
                return str(self.tenant.row(rows.model).pk)
            if name == "uid" and self.portal:
                return self.portal[0]
            if name in _MODELS:
                return str(self.tenant.row(_MODELS[name]).pk)
            if name == "app_label":
                return "jobs"
            if name == "slug":
                return self.tenant.organization.slug
            return _WORDS.get(name, "1")

        return "/" + _PARAMETER.sub(value, path).replace("^", "").replace("$", "").replace("?", "")

    def _token(self, path: str) -> str:
        urls = {
            "o/": lambda: signed_links.offer_url(self.tenant.row(Offer)),
            "t/": lambda: signed_links.technician_url(self.tenant.row(Technician)),
            "s/": lambda: signed_links.status_url(self.tenant.row(Submission)),
            "f/": lambda: signed_links.status_url(self.tenant.row(Submission)),
        }
        make = urls.get(path[:2])
        return make().rstrip("/").rsplit("/", 1)[-1] if make else "x"

    def names(self, method: str, address: str) -> tuple[set[str], set[str], bool]:
        """Return the names that the view reads from the query string and from the body; and if it reads none."""
        with _reads() as (in_query, in_body):
            cost = self.send(method, f"{address}?{_QUERY_MARK}=1", f"{_BODY_MARK}=1", what="plain")
        return in_query, in_body, cost.status in REFUSED and not in_query | in_body

    def send(self, method: str, address: str, body: Any = "", content_type: str = "", *, what: str = "") -> Cost:
        """Send one request, and keep the problem if there is one. A slow request is measured again."""
        cost = self._measure(method, address, body, content_type or FORM)
        for _ in range(MEASUREMENTS - 1):
            if cost.cpu_s > MAX_CPU_S:
                cost = min(
                    cost, self._measure(method, address, body, content_type or FORM), key=lambda one: one.cpu_s
                )
        self.tried += 1
        name = f"{method} {address[:120]} ({what})"
        self.slowest = max(self.slowest, (cost.cpu_s, name))
        self.largest = max(self.largest, (cost.memory, name))
        if problem := cost.problem():
            self.problems.append(f"{name}: {problem}")
        return cost

    def _measure(self, method: str, address: str, body: Any, content_type: str) -> Cost:
        """Send one request, and roll its changes back."""
        _reset_peak()
        # Some requests sign out, which the rollback undoes in the database only.
        self.client.cookies = copy.deepcopy(self._cookies)
        error = ""
        before, begun = _memory("VmRSS"), time.process_time()
        try:
            with transaction.atomic():
                status = self.client.generic(method, address, body, content_type).status_code
                transaction.set_rollback(True)
        except Exception as raised:  # of the handler itself
            status, error = MAX_SERVER_ERROR, type(raised).__name__
        return Cost(status, time.process_time() - begun, max(0, _memory("VmHWM") - before), error)

    def try_queries(self, address: str, names: set[str], values: dict[str, str]) -> None:
        """Send hostile query strings: long values, many parameters, one parameter many times."""
        names = names or {"q"}
        for what, value in values.items():
            given = quote(value[: QUERY_SIZE // (2 * max(1, len(names)))])[: QUERY_SIZE // len(names)]
            self.send("GET", f"{address}?{'&'.join(f'{name}={given}' for name in sorted(names))}", what=what)
        first = sorted(names)[0]
        self.send("GET", f"{address}?{f'{first}=1&' * 900}", what="one parameter 900 times")
        self.send("GET", f"{address}?{urlencode({f'p{n}': n for n in range(900)})}", what="900 parameters")
        self.send("GET", f"{address}?{'&'.join(f'{first}={n}' for n in range(3000))}", what="3,000 of one")

    def try_odd_values(self, address: str, names: set[str], odd: list[str]) -> None:
        """Send each parameter each value that a parser may not expect; the admin's common ones on some pages."""
        tried_enough = {name for name in names & COMMON if self.common[name] >= ENOUGH}
        if address.startswith("/admin/"):
            names = names - tried_enough
            self.common.update(names & COMMON)
        for name in sorted(names):
            for value in odd:
                self.send("GET", f"{address}?{urlencode({name: value})}", what=f"{name}={value[:20]}")

    def try_odd_bodies(self, method: str, address: str, names: set[str], odd: list[str]) -> None:
        """Send each value in all parameters and, outside the admin, whose forms check all, in single ones."""
        single = () if address.startswith("/admin/") else sorted(names)
        for value in odd if names else ():
            self.send(method, address, urlencode(dict.fromkeys(names, value)), what=f"all={value[:20]}")
            for name in single:
                self.send(method, address, urlencode({name: value}), what=f"{name}={value[:20]}")

    def try_bodies(self, method: str, address: str, names: set[str], values: dict[str, str]) -> None:
        """Send hostile forms and JSON bodies."""
        names = names or {"name"}
        for what, value in values.items():
            share = value[: SIZE // (3 * len(names))]
            self.send(method, address, urlencode(dict.fromkeys(names, share))[:SIZE], what=f"form, {what}")
        several = urlencode([(name, number) for name in sorted(names) for number in range(900 // len(names))])
        self.send(method, address, several, what="duplicates")
        self.send(method, address, "&".join(f"a{n}={n}" for n in range(60_000)), what="60,000 parameters")
        for parts, header in ((5000, 'name="a{}"'), (90, 'name="f{}"; filename="x.csv"')):
            content = _multipart(parts, header, SIZE // parts - 100)
            self.send(method, address, content, MULTIPART, what=f"multipart of {parts}")

    def try_json(self, method: str, address: str, names: set[str], values: dict[str, str]) -> None:
        """Send hostile JSON: each value raw, as a text, and in each member."""
        for what, value in values.items():
            self.send(method, address, value, JSON, what=f"raw {what}")
            members = dict.fromkeys(names or {"name"}, value[: SIZE // (2 * max(1, len(names)))])
            self.send(method, address, json.dumps(members)[:SIZE], JSON, what=f"members, {what}")


FORM, JSON = "application/x-www-form-urlencoded", "application/json"
MULTIPART = "multipart/form-data; boundary=b"


def _paths(resolver: URLResolver, before: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each URL pattern as text, with its view."""
    for entry in resolver.url_patterns:
        path = f"{before}{entry.pattern}"
        if isinstance(entry, URLResolver):
            yield from _paths(entry, path)
        else:
            yield path, entry.callback


def _multipart(parts: int, header: str, size: int) -> str:
    disposition = f"Content-Disposition: form-data; {header}"
    each = (f"--b\r\n{disposition.format(n)}\r\n\r\n{'x' * max(1, size)}\r\n" for n in range(parts))
    return "".join(each) + "--b--\r\n"


_QUERY_MARK, _BODY_MARK = "in_query", "in_body"


@contextlib.contextmanager
def _reads() -> Iterator[tuple[set[str], set[str]]]:
    """Yield the names that are read meanwhile from query strings, and from bodies; the marks tell them apart."""
    in_query: set[str] = set()
    in_body: set[str] = set()
    originals = {name: getattr(QueryDict, name) for name in ("get", "getlist", "__getitem__", "__contains__")}

    def observed(name: str) -> Any:
        def read(self: QueryDict, key: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(key, str) and key not in (_QUERY_MARK, _BODY_MARK):
                (in_body if dict.__contains__(self, _BODY_MARK) else in_query).add(key)
            return originals[name](self, key, *args, **kwargs)

        return read

    for name in originals:
        setattr(QueryDict, name, observed(name))
    try:
        yield in_query, in_body
    finally:
        for name, original in originals.items():
            if name in QueryDict.__dict__:
                setattr(QueryDict, name, original)


_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def _memory(name: str) -> int:
    """Return a figure of this process's memory in bytes; 0 where the system does not tell."""
    with contextlib.suppress(OSError):
        for line in _STATUS.read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
    return 0


def _reset_peak() -> None:
    """Let VmHWM begin again, where the system can."""
    with contextlib.suppress(OSError):
        _CLEAR.write_text("5")
