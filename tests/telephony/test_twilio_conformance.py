"""What we send to Twilio and what the simulator answers, by Twilio's SDK and by Twilio's OpenAPI description.

The SDK is generated from the description: its methods know every parameter, and its resources every property with
its type. The description itself is not part of this repository. With `TWILIO_OPENAPI`, the path of
`twilio_api_v2010.json`, the same exchanges are checked against it, too.
"""

from __future__ import annotations

import ast
import inspect
import json
import os
import re
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
import requests
from twilio.rest.api.v2010.account import AccountInstance
from twilio.rest.api.v2010.account.call import CallContext, CallInstance, CallList
from twilio.rest.api.v2010.account.message import MessageInstance, MessageList

from dispatch.core.http.client import Response
from dispatch.core.http.service_client import ServiceClient
from dispatch.dev.simulator import params, rest, rest_messages
from dispatch.telephony import providers
from dispatch.telephony.providers.base import CallGone, CallRequest, Rejected, Submitted, TextRequest
from tests.phones import answer, busy, fails, voicemail
from tests.support.waiting import wait_until
from tests.telephony.conftest import Caller

DESCRIPTION = os.environ.get("TWILIO_OPENAPI", "")
ANN, BOB, CID = "+16025550101", "+16025550102", "+16025550103"
SERVICE = "MG" + "1" * 32
URL = "http://127.0.0.1:9/voice"
# Parameters of the SDK's `list` methods that are not the provider's.
OF_THE_SDK = {"limit"}
# Properties that the SDK knows and that the published description may not have yet.
NEWER = {"stir_verstat"}


@dataclass(frozen=True)
class Exchange:
    """A request and its response. `template`: the path with `{AccountSid}` and `{Sid}`."""

    method: str
    template: str
    fields: list[tuple[str, str]]
    status: int
    body: dict[str, Any]


def template_of(path: str) -> str:
    path = re.sub(r"/AC[0-9a-f]{32}", "/{AccountSid}", path)
    return re.sub(r"/(CA|SM)[0-9a-f]{32}\.json", "/{Sid}.json", path)


def exchange_of(request: Any, response: requests.Response) -> Exchange:
    parts = urlsplit(request.url)
    path = re.sub(r"/AC[0-9a-f]{32}\.json", "/{Sid}.json", parts.path)
    path = template_of(path)
    form = request.body.decode() if isinstance(request.body, bytes) else request.body or ""
    return Exchange(request.method, path, parse_qsl(parts.query or form), response.status_code, response.json())


@pytest.fixture
def exchanges(caller: Caller, monkeypatch: pytest.MonkeyPatch) -> list[Exchange]:
    """Every kind of request that the application makes, in every state of a call and a text."""
    recorded: list[Exchange] = []
    send = requests.Session.send

    def record(self: requests.Session, request: Any, **more: Any) -> requests.Response:
        response = send(self, request, **more)
        if "/2010-04-01/" in request.url:
            recorded.append(exchange_of(request, response))
        return response

    post = ServiceClient.post

    async def record_call(self: ServiceClient, url: str, body: bytes, *args: Any, **more: Any) -> Response:
        response = await post(self, url, body, *args, **more)
        path = template_of(urlsplit(url).path)
        answer = json.loads(response.body_start)
        recorded.append(Exchange("POST", path, parse_qsl(body.decode()), response.status, answer))
        return response

    monkeypatch.setattr(requests.Session, "send", record)
    monkeypatch.setattr(ServiceClient, "post", record_call)
    use_everything(caller)
    return recorded


def use_everything(caller: Caller) -> None:
    provider, sim = providers.for_account(caller.account), caller.sim
    from_ = str(caller.number.phone)

    def place(to: str, **more: Any) -> str:
        order = CallRequest(to, from_, URL, URL, ring_timeout_s=20, time_limit_s=60, leave_within_s=10, **more)
        placed = provider.place(order)
        assert isinstance(placed, Submitted), placed
        return str(placed.sid)

    def is_over(sid: str) -> Callable[[], bool]:
        return lambda: bool(sim.get(f"/control/calls/{sid}")["over"])

    for number, does in ((ANN, answer()), (BOB, busy()), (CID, voicemail()), ("+16025550104", fails())):
        sim.phone(number).will(does)
    sids = [place(ANN), place(BOB), place(CID, detect_machine=True, fallback_url=URL), place("+16025550104")]
    live = place("+16025550105")
    provider.fetch(live)
    provider.hang_up(live)
    provider.hang_up(live)
    for sid in sids:
        wait_until(is_over(sid))
        provider.fetch(sid)
    assert len(provider.find_calls(ANN, from_)) == 1
    sim.phone(BOB).texts_will("undelivered", 30003)
    for to, more in ((ANN, {"service": SERVICE, "valid_s": 600}), (BOB, {"status_url": URL})):
        assert isinstance(provider.send_text(TextRequest(to, from_, "It's Ann – call", **more)), Submitted)
        wait_until(lambda to=to: sim.messages(to=to)[0]["status"] in ("delivered", "undelivered"))
        assert len(provider.find_texts(to, from_)) == 1
    assert provider.fetch_account()
    with pytest.raises(CallGone):
        provider.fetch("CA" + "0" * 32)
    assert isinstance(provider.place(CallRequest("+1602", from_, URL, URL, 20, 60, 10)), Rejected)


# --- by the SDK


def parameters_of(method: Callable[..., Any]) -> set[str]:
    """The provider's names of the parameters of a method of the SDK."""
    names = set(inspect.signature(method).parameters) - {"self"} - OF_THE_SDK
    signs = {"_before": "<", "_after": ">"}
    found = set()
    for name in names:
        end = next((end for end in signs if name.endswith(end)), "")
        words = name.removesuffix(end).rstrip("_").split("_")
        found.add("".join(word.title() for word in words) + signs.get(end, ""))
    return found


def properties_of(resource: type) -> dict[str, str]:
    """The properties of a resource, with their types, as the SDK's own source says."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(resource.__init__)))
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.AnnAssign):
            names = [text.value for text in ast.walk(node.value) if isinstance(text, ast.Constant)]
            if len(names) == 1 and isinstance(names[0], str):
                found[names[0]] = ast.unparse(node.annotation)
    return found


def has_type(resource: type, name: str, wanted: str, value: Any, parsed: Any) -> bool:
    if value is None:
        return wanted.startswith("Optional")
    kinds = {"str": str, "int": int, "bool": bool, "Dict[str, object]": dict, "datetime": str}
    inner = wanted.removeprefix("Optional[").removesuffix("]") if wanted.startswith("Optional") else wanted
    inner = inner.strip("'\"")
    if inner == "datetime":
        return isinstance(parsed, datetime)
    if inner.startswith(f"{resource.__name__}."):
        values = vars(getattr(resource, inner.rpartition(".")[2]))
        return value in {text for name, text in values.items() if not name.startswith("_")}
    return isinstance(value, kinds[inner])


RESOURCES: dict[str, tuple[type, str]] = {
    "Calls": (CallInstance, "calls"),
    "Messages": (MessageInstance, "messages"),
    "Accounts": (AccountInstance, "accounts"),
}


def resources_in(exchange: Exchange) -> list[tuple[type, dict[str, Any]]]:
    if exchange.status >= 400:
        return []
    name = next((name for name in ("Calls", "Messages") if f"/{name}" in exchange.template), "Accounts")
    kind, plural = RESOURCES[name]
    return [(kind, item) for item in exchange.body.get(plural, [exchange.body])]


def test_parameters_that_the_simulator_knows_are_the_sdks() -> None:
    paging = rest.PAGING - {"PageSize"}  # the SDK follows the URIs of pages
    for known, method in (
        (params.CREATE | params.NOT_SIMULATED, CallList.create),
        (rest.UPDATE, CallContext.update),
        (rest.LIST - paging, CallList.list),
        (rest_messages.CREATE, MessageList.create),
        (rest_messages.LIST - paging, MessageList.list),
    ):
        assert known <= parameters_of(method), method


def test_every_parameter_of_a_new_call_is_known() -> None:
    unknown = parameters_of(CallList.create) - params.CREATE - params.NOT_SIMULATED
    assert unknown == set(), "either simulated, or refused as not simulated"


def test_requests_have_parameters_that_the_sdk_knows(exchanges: list[Exchange]) -> None:
    methods = {
        ("POST", "Calls.json"): CallList.create,
        ("GET", "Calls.json"): CallList.list,
        ("POST", "Calls/{Sid}.json"): CallContext.update,
        ("POST", "Messages.json"): MessageList.create,
        ("GET", "Messages.json"): MessageList.list,
    }
    used = set()
    for exchange in exchanges:
        key = (exchange.method, exchange.template.rpartition("{AccountSid}/")[2])
        used.add(key)
        names = {name for name, _ in exchange.fields}
        assert names <= (parameters_of(methods[key]) if key in methods else set()), exchange
    assert used >= set(methods)


def test_answers_have_the_properties_of_the_sdks_resources(exchanges: list[Exchange]) -> None:
    seen = [found for exchange in exchanges for found in resources_in(exchange)]
    assert {kind for kind, _ in seen} == {CallInstance, MessageInstance, AccountInstance}
    for kind, item in seen:
        wanted = properties_of(kind)
        assert set(item) == set(wanted), kind
        more = {} if kind is AccountInstance else {"account_sid": item["account_sid"]}
        parsed = kind(None, item, **more)
        for name, value in item.items():
            attribute = f"_{name}" if name == "from" else name
            shown = getattr(parsed, attribute if hasattr(parsed, attribute) else "from_")
            assert has_type(kind, name, wanted[name], value, shown), f"{kind.__name__}.{name}={value!r}"


# --- by the description


@pytest.mark.skipif(not DESCRIPTION, reason="TWILIO_OPENAPI does not name Twilio's description")
def test_exchanges_are_valid_by_twilios_description(exchanges: list[Exchange]) -> None:
    from openapi_schema_validator import OAS30Validator

    spec = json.loads(Path(DESCRIPTION).read_text())
    for exchange in exchanges:
        operation = spec["paths"][exchange.template][exchange.method.lower()]
        check_request(spec, operation, exchange)
        if exchange.status < 400:
            content = operation["responses"][str(exchange.status)]["content"]["application/json"]["schema"]
            schema = strict(spec, content)
            OAS30Validator(schema).validate(without_newer(exchange.body))


def without_newer(body: Any) -> Any:
    if isinstance(body, list):
        return [without_newer(each) for each in body]
    if not isinstance(body, dict):
        return body
    return {name: without_newer(each) for name, each in body.items() if name not in NEWER}


def check_request(spec: dict[str, Any], operation: dict[str, Any], exchange: Exchange) -> None:
    """Validate the form, or the query, as its schema says. A form's values are read as their schemas' types."""
    from openapi_schema_validator import OAS30Validator

    if exchange.method == "GET":
        known = {each["name"]: each["schema"] for each in operation.get("parameters", [])}
        schema: dict[str, Any] = {"type": "object", "properties": known}
    else:
        schema = operation["requestBody"]["content"]["application/x-www-form-urlencoded"]["schema"]
    values: dict[str, Any] = {}
    for name, text in exchange.fields:
        kind = schema["properties"].get(name, {}).get("type")
        if kind == "array":
            values.setdefault(name, []).append(text)
        else:
            values[name] = int(text) if kind == "integer" else text
    OAS30Validator({**resolve(spec, schema), "additionalProperties": False}).validate(values)


def resolve(spec: dict[str, Any], schema: Any) -> Any:
    """Replace references by what they refer to."""
    if isinstance(schema, list):
        return [resolve(spec, each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        found: Any = spec
        for part in schema["$ref"].removeprefix("#/").split("/"):
            found = found[part]
        return resolve(spec, found)
    return {name: resolve(spec, each) for name, each in schema.items()}


def strict(spec: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    """The schema, with all properties required and no others allowed, at the top and in the listed resources."""

    def tighten(each: Any) -> Any:
        if not isinstance(each, dict):
            return each
        made = {name: tighten(value) for name, value in each.items()}
        if isinstance(made.get("properties"), dict) and made.get("type") == "object":
            made |= {"required": sorted(made["properties"]), "additionalProperties": False}
        return made

    return dict(tighten(resolve(spec, schema)))
