"""Webhooks about calls of leads are applied in groups, and answered only after their commit."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import pytest
from django.conf import settings
from django.db import OperationalError
from structlog.testing import capture_logs

from dispatch.capacity import services as capacity
from dispatch.core import clock
from dispatch.core.db import prepared
from dispatch.core.events import SYSTEM
from dispatch.leads.models import DoNotCall, KeyBranch, Lead, VoiceAgent
from dispatch.telephony import handlers
from dispatch.telephony.models import Call, CallEvent
from dispatch.telephony.services import report_groups, report_signers
from tests.harness.grouped_reports import (
    BEFORE_COMMIT,
    Provider,
    Signed,
    apply,
    group_sizes,
    hold_groups,
    route,
    rows_of,
    statuses,
)
from tests.harness.leads import Floor
from tests.support import factories
from tests.support.processes import free_port, running
from tests.support.row_locks import held
from tests.support.waiting import wait_until


@pytest.fixture
def provider(app_url: str) -> Iterator[Provider]:
    floor = Floor("twilio", lines=50)
    yield Provider(floor)
    floor.stop()


def post_together(requests: list[Signed]) -> list[int]:
    """Post these while a group is in progress, so that they form the next one. Return their statuses."""
    with ThreadPoolExecutor(len(requests)) as threads:
        return [response.status_code for response in threads.map(Signed.post, requests)]


# --- The same as without groups

PLAYS: dict[str, Callable[[Provider, Call], list[Signed]]] = {
    "busy": lambda by, call: [by.ringing(call), by.ended(call, "busy")],
    "no answer": lambda by, call: [by.ringing(call), by.ended(call, "no-answer", CallDuration=0)],
    "canceled": lambda by, call: [by.ended(call, "canceled")],
    "answered": lambda by, call: [by.ringing(call), by.voice(call), by.ended(call)],
    "answered, without a prompt": lambda by, call: [by.ringing(call), by.ended(call)],
    "a machine": lambda by, call: [by.voice(call, AnsweredBy="machine_start"), by.ended(call)],
    "repeated": lambda by, call: [by.ringing(call)] * 2 + [by.voice(call)] * 2 + [by.ended(call)] * 2,
    "out of order": lambda by, call: [by.ended(call, "busy"), by.ringing(call)],
    "prompt after the end": lambda by, call: [by.ended(call), by.voice(call)],
    "failed": lambda by, call: [by.ended(call, "failed", ErrorCode="13224", ErrorMessage="No such number")],
    "failed, SIP": lambda by, call: [by.ended(call, "failed", SipResponseCode="404")],
    "failed, no code": lambda by, call: [by.ended(call, "failed")],
    "no sequence": lambda by, call: [by.sign(call, CallStatus="ringing", Timestamp="x"), by.ended(call)],
    "no status": lambda by, call: [by.sign(call, CallStatus="levitating"), by.sign(call, CallStatus=None)],
    "strange fields": lambda by, call: [by.sign(call, Note='"\\{}\n', CallToken="😀é", CallStatus="ringing")],
    "empty fields": lambda by, call: [by.sign(call, Note="", CallStatus="ringing", SequenceNumber="")],
    "NUL": lambda by, call: [by.sign(call, Note="a\0b", CallStatus="ringing")],
    "wrong signature": lambda by, call: [by.sign(call, token="another", CallStatus="busy")],
    "another account": lambda by, call: [by.sign(call, CallStatus="busy", AccountSid="AC" + "0" * 32)],
    "another call": lambda by, call: [by.sign(call, CallStatus="busy", CallSid="CA" + "0" * 32)],
    "no call": lambda by, call: [by.sign(call, CallStatus="busy", CallSid=None)],
    "unknown call": lambda by, call: [by.sign(call, CallStatus="busy", call_id=call.pk + 10**6)],
    "unknown kind": lambda by, call: [by.sign(call, "voices", CallStatus="in-progress")],
    "key": lambda by, call: [
        by.voice(call),
        by.sign(call, "gather?step=1&keys=9", CallStatus="in-progress", Digits="9"),
        by.ended(call),
    ],
}
COMPARED_HEADERS = {"Content-Type", "Content-Length", "X-Content-Type-Options", "Referrer-Policy", "Allow"}


@pytest.mark.parametrize("name", PLAYS)
def test_route_and_django_respond_and_write_the_same(provider: Provider, name: str) -> None:
    provider.floor.campaign.script = "Hello {name}.\nGoodbye & <thanks>."
    provider.floor.campaign.opt_out_key = "9"
    provider.floor.campaign.save()
    found = []
    for post in (Signed.post, Signed.post_to_django):
        (call,) = provider.accept_calls(1)
        responses = [post(request) for request in PLAYS[name](provider, call)]
        said = [response.content.replace(f"/{call.pk}/".encode(), b"/id/") for response in responses]
        headers = [
            {name: value for name, value in response.headers.items() if name in COMPARED_HEADERS}
            for response in responses
        ]
        names = [sorted(response.headers) for response in responses]
        codes = [response.status_code for response in responses]
        for sent in headers:  # documents name the call in their URLs, whose ids may differ in length
            sent.pop("Content-Length", None)
        found.append({"codes": codes, "said": said, "headers": headers, "names": names, **rows_of(call)})
    assert found[0] == found[1]


def test_plain_reports_do_not_reach_django(provider: Provider, monkeypatch: pytest.MonkeyPatch) -> None:
    reached: list[int] = []
    monkeypatch.setattr(
        "dispatch.telephony.webhooks.receive_webhook", lambda call_id, *_: reached.append(call_id) or 1 / 0
    )
    busy, answered = provider.accept_calls(2)
    responses = [
        request.post(**{"X-Request-ID": "my-request-id"})
        for request in (
            provider.ringing(busy), provider.ended(busy, "busy"), provider.ringing(answered),
            provider.voice(answered), provider.ended(answered),
        )
    ]  # fmt: skip
    assert [response.status_code for response in responses] == [204, 204, 204, 200, 204]
    assert {response.headers["X-Request-ID"] for response in responses} == {"my-request-id"}
    assert b"<Say" in responses[3].content
    assert reached == []
    assert statuses([busy, answered]) == ["busy", "completed"]
    assert provider.floor.lead(answered.subject_id).outcome == "answered"
    assert provider.floor.lead(busy.subject_id).last_outcome == "busy"
    provider.floor.assert_nothing_held()


def test_first_report_establishes_a_call_without_a_sid(provider: Provider) -> None:
    call, other = provider.accept_calls(2)
    Call.objects.filter(pk=call.pk).update(status="unknown", sid=None)
    taken = provider.sign(call, CallStatus="ringing", CallSid=other.sid)
    assert apply(taken, provider.ringing(call)) == [None, None], "what follows a referred report is referred too"
    assert taken.post().status_code == 403
    assert provider.ringing(call).post().status_code == 204
    row = Call.objects.get(pk=call.pk)
    assert (row.sid, row.status, row.submitted_at is not None) == (call.sid, "ringing", True)


def test_two_calls_cannot_adopt_one_sid_in_a_group(provider: Provider) -> None:
    calls = provider.accept_calls(2)
    Call.objects.update(sid=None)
    first, second = (provider.sign(call, CallStatus="ringing", CallSid="CA" + "1" * 32) for call in calls)
    answers = apply(first, second)
    assert [answer is not None for answer in answers] == [True, False]
    assert [Call.objects.get(pk=call.pk).sid for call in calls] == ["CA" + "1" * 32, None]


# --- Groups


def test_reports_that_arrive_together_share_a_transaction(
    provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = provider.accept_calls(12)
    sizes = group_sizes(monkeypatch)
    with hold_groups() as release, ThreadPoolExecutor(len(calls)) as threads:
        first = threads.submit(provider.ringing(calls[0]).post)
        wait_until(lambda: sizes == [1])
        others = [threads.submit(provider.ringing(call).post) for call in calls[1:]]
        wait_until(lambda: route()._groups.waiting == 11)
        assert not first.done(), "a response was sent before its commit"
        assert statuses(calls) == ["submitted"] * 12
        release()
        assert [one.result().status_code for one in (first, *others)] == [204] * 12
    assert sizes == [1, 11]
    assert statuses(calls) == ["ringing"] * 12


def test_one_poisoned_report_hurts_only_itself(provider: Provider, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = provider.accept_calls(6)
    poisoned = provider.sign(calls[2], CallStatus="ringing", SequenceNumber=0, Poison="yes")
    record = report_groups._Group._record

    def fail(self: Any) -> Any:
        if any("Poison" in self.reports[at].event.payload for at in self.open):
            raise ValueError("poisoned")
        return record(self)

    monkeypatch.setattr(report_groups._Group, "_record", fail)
    monkeypatch.setattr("dispatch.telephony.webhooks.receive_webhook", lambda *_: 1 / 0)
    requests = [poisoned if call is calls[2] else provider.ringing(call) for call in calls]
    sizes = group_sizes(monkeypatch)
    with hold_groups() as release, ThreadPoolExecutor(6) as threads:
        started = [threads.submit(requests[0].post)]
        wait_until(lambda: sizes == [1])
        started += [threads.submit(request.post) for request in requests[1:]]
        wait_until(lambda: route()._groups.waiting == 5)
        release()
        codes = [one.result().status_code for one in started]
    assert sizes == [1, 5, 1, 1, 1, 1, 1]
    assert codes == [204, 204, 500, 204, 204, 204]
    assert statuses(calls) == ["ringing", "ringing", "submitted", "ringing", "ringing", "ringing"]


def test_out_of_order_and_repeated_in_one_group_and_over_two(provider: Provider) -> None:
    (call, other) = provider.accept_calls(2)
    ended, ringing, voice = provider.ended(call), provider.ringing(call), provider.voice(call)
    answers = apply(ringing, voice, voice, ended, ringing, ended, provider.ringing(other))
    assert None not in answers
    assert answers[1] == answers[2]
    again = apply(ended, ringing, provider.ringing(other), provider.ended(other, "busy"))
    assert None not in again
    assert CallEvent.objects.filter(call=call).count() == 3
    assert [kind for kind, _, _ in rows_of(call)["events"]].count("call.completed") == 1
    assert provider.floor.told(call.subject_id).count("finished") == 1
    assert provider.floor.lead(call.subject_id).outcome == "answered"
    assert statuses([call, other]) == ["completed", "busy"]


def test_key_counts_whether_it_comes_before_or_with_the_end(provider: Provider) -> None:
    provider.floor.campaign.opt_out_key = "9"
    provider.floor.campaign.save()
    (call,) = provider.accept_calls(1)
    assert provider.voice(call).post().status_code == 200
    key = provider.sign(call, "gather?step=1&keys=9", CallStatus="in-progress", Digits="9")
    codes = post_together([key, provider.ended(call)])
    assert codes == [200, 204]
    assert provider.floor.lead(call.subject_id).status == "finished"
    assert Call.objects.get(pk=call.pk).keys_pressed == "9"
    assert DoNotCall.objects.get(organization=call.organization).phone == call.to_phone


def test_locked_rows_delay_only_their_own_reports(provider: Provider) -> None:
    locked_call, locked_lead, free = provider.accept_calls(3)
    lead = Lead.objects.get(pk=locked_lead.subject_id)
    requests = [provider.ended(call, "busy") for call in (locked_call, locked_lead, free)]
    with held(Call.objects.get(pk=locked_call.pk), lead, lock="FOR NO KEY UPDATE"):
        answers = apply(*requests)
    assert [answer is not None for answer in answers] == [False, False, True]
    assert statuses([locked_call, locked_lead, free]) == ["submitted", "submitted", "busy"]
    assert not CallEvent.objects.exclude(call=free).exists(), "a referred report is not recorded"
    assert post_together(requests) == [204] * 3
    assert statuses([locked_call, locked_lead, free]) == ["busy"] * 3


# --- Signatures


def test_another_accounts_signature_opens_nothing(provider: Provider) -> None:
    call, own = provider.accept_calls(2)
    other = factories.account(factories.organization(), auth_token="of-another")
    foreign = [
        provider.sign(call, token="of-another", CallStatus="busy"),
        provider.sign(call, token="of-another", CallStatus="busy", AccountSid=other.account_sid),
    ]
    assert apply(*foreign, provider.ringing(own))[:2] == [None, None]
    assert [request.post().status_code for request in foreign] == [403, 403]
    assert statuses([call, own]) == ["submitted", "ringing"]


def test_same_sid_in_two_organizations_opens_only_what_its_token_signed(provider: Provider) -> None:
    """A tenant enters another's account id with a token that it chose."""
    stranger = Provider(Floor("twilio", account_sid=provider.floor.account.account_sid, auth_token="chosen"))
    (call,) = provider.accept_calls(1)
    (theirs,) = stranger.accept_calls(1)
    assert stranger.ringing(theirs).post().status_code == 204
    forged = provider.sign(call, token="chosen", CallStatus="busy")
    assert apply(stranger.ended(theirs, "busy"), forged) == [report_groups.Applied(), None]
    assert forged.post().status_code == 403
    assert provider.ringing(call).post().status_code == 204
    assert statuses([call, theirs]) == ["ringing", "busy"]


def test_withdrawn_token_counts_no_longer_at_once(provider: Provider) -> None:
    (call,) = provider.accept_calls(1)
    before = provider.floor.account.auth_token
    assert provider.ringing(call).post().status_code == 204
    account = provider.floor.account
    account.refresh_from_db()
    capacity.set_token(account, "the-new-one", actor=SYSTEM)
    assert provider.sign(call, CallStatus="in-progress", token=before).post().status_code == 204
    assert provider.sign(call, CallStatus="in-progress", token="the-new-one", N=1).post().status_code == 204
    capacity.end_rotation(account, actor=SYSTEM)
    assert provider.ended(call, token=before).post().status_code == 403
    assert statuses([call]) == ["answered"]


def test_reports_are_applied_in_groups_again_soon_after_a_rotation(
    provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    (call,) = provider.accept_calls(1)
    sizes = group_sizes(monkeypatch)
    assert provider.ringing(call).post().status_code == 204
    account = provider.floor.account
    account.refresh_from_db()
    capacity.set_token(account, "the-new-one", actor=SYSTEM)
    monkeypatch.setattr(report_signers, "REREAD_S", 0.0)  # the tokens were read a while ago
    assert provider.sign(call, CallStatus="in-progress", token="the-new-one").post().status_code == 204
    assert sizes == [1, 1]
    assert statuses([call]) == ["answered"]


def test_forged_reports_do_not_read_the_database_again(
    provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The account's tokens are known for a second: its strangers get as far as Django's refusal."""
    (call,) = provider.accept_calls(1)
    sizes = group_sizes(monkeypatch)
    assert provider.ringing(call).post().status_code == 204
    assert provider.sign(call, token="another", CallStatus="busy").post().status_code == 403
    assert sizes == [1]


# --- Failures


def test_killed_before_the_commit_sends_nothing_and_doubles_nothing(
    provider: Provider, test_environment: dict[str, str]
) -> None:
    of = {"organization": provider.floor.organization, "campaign": provider.floor.campaign}
    KeyBranch.objects.create(**of, key="1", say="Thank you.", disposition="interested")
    calls = provider.accept_calls(3)
    requests = [provider.ringing(calls[0]), provider.ended(calls[1], "busy"), provider.key(calls[2], "1")]
    port = free_port()
    env = {**test_environment, "DISPATCH_FAULTS": f"{BEFORE_COMMIT}=kill"}
    with running("web", "--port", str(port), env=env) as web:
        _wait_for(port, web)
        with ThreadPoolExecutor(3) as threads:
            sent = [threads.submit(request.post, f"http://127.0.0.1:{port}") for request in requests]
            assert all(isinstance(one.exception(), OSError) for one in sent), "no response was sent"
    assert statuses(calls) == ["submitted"] * 3
    assert not CallEvent.objects.exists()
    assert [request.post().status_code for request in requests * 2] == [204, 204, 200] * 2
    assert statuses(calls) == ["ringing", "busy", "answered"]
    assert CallEvent.objects.count() == 3
    assert Call.objects.get(pk=calls[2].pk).keys_pressed == "1"
    assert provider.floor.lead(calls[2].subject_id).disposition == "interested"
    assert provider.floor.lead(calls[1].subject_id).last_outcome == "busy"
    assert provider.floor.told(calls[1].subject_id).count("again") == 1


def test_killed_after_the_commit_is_repeated_without_effect(
    provider: Provider, test_environment: dict[str, str]
) -> None:
    (call,) = provider.accept_calls(1)
    request = provider.ended(call, "busy")
    port = free_port()
    env = {**test_environment, "DISPATCH_FAULTS": "telephony.webhook.committed=kill"}
    with running("web", "--port", str(port), env=env) as web:
        _wait_for(port, web)
        with pytest.raises(OSError):
            request.post(f"http://127.0.0.1:{port}")
    assert statuses([call]) == ["busy"]
    assert request.post().status_code == 204
    assert CallEvent.objects.count() == 1
    assert provider.floor.told(call.subject_id).count("again") == 1


def _wait_for(port: int, web: Any) -> None:
    def accepts() -> bool:
        assert web.returncode is None, web.log()
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    wait_until(accepts, message=web.log)


def test_database_lost_during_a_group_is_an_error_that_the_provider_repeats(
    provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = provider.accept_calls(3)
    requests = [provider.ended(call, "busy") for call in calls]
    execute = prepared._execute
    is_away = True

    def lose(database: Any, sql: str, params: Any) -> Any:
        if is_away and ("INTO telephony_callevent" in sql or 'INTO "telephony_callevent"' in sql):
            database.connection.close()
        return execute(database, sql, params)

    monkeypatch.setattr(prepared, "_execute", lose)
    assert set(post_together(requests)) <= {500, 503}
    assert statuses(calls) == ["submitted"] * 3
    is_away = False
    assert post_together(requests) == [204] * 3
    assert statuses(calls) == ["busy"] * 3
    assert CallEvent.objects.count() == 3


def test_error_of_the_whole_group_is_not_tried_item_by_item(
    provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = provider.accept_calls(2)
    tried: list[int] = []

    def away(reports: Any) -> Any:
        tried.append(len(reports))
        raise OperationalError("the server closed the connection unexpectedly")

    monkeypatch.setattr(route()._groups, "_run", away)
    with capture_logs() as logs:
        assert post_together([provider.ringing(call) for call in calls]) == [204, 204], "Django applies them"
    assert sum(tried) == 2
    assert {line["call"] for line in logs if line["event"] == "report_referred"} == {call.pk for call in calls}


def begin(request: Signed) -> socket.socket:
    """Send a request up to the first bytes of its body. Return the open connection."""
    server = urlsplit(settings.PUBLIC_BASE_URL)
    headers = {"Host": server.netloc, "Content-Length": str(len(request.body)), **request.headers}
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    connection = socket.create_connection((server.hostname or "", server.port or 0), timeout=30)
    connection.sendall(f"POST {request.path} HTTP/1.1\r\n{head}\r\n".encode() + request.body[:10])
    return connection


def test_slow_body_holds_up_nobody(provider: Provider) -> None:
    slow, quick = provider.accept_calls(2)
    request = provider.ringing(slow)
    with begin(request) as connection:
        assert provider.ringing(quick).post().status_code == 204
        assert statuses([slow, quick]) == ["submitted", "ringing"]
        connection.sendall(request.body[10:])
        assert connection.recv(100).startswith(b"HTTP/1.1 204")
    assert statuses([slow]) == ["ringing"]


def test_interrupted_body_changes_nothing(provider: Provider) -> None:
    (call,) = provider.accept_calls(1)
    request = provider.ringing(call)
    begin(request).close()
    assert request.post().status_code == 204
    assert CallEvent.objects.count() == 1


def test_time_of_arrival_is_recorded(provider: Provider) -> None:
    (call,) = provider.accept_calls(1)
    report = provider.ringing(call).parsed()
    clock.travel(3)
    report_groups.apply_group([report])
    assert CallEvent.objects.get().at == report.arrived_at


def test_campaign_with_a_voice_agent_is_referred(provider: Provider) -> None:
    agent = {"organization": provider.floor.organization, "campaign": provider.floor.campaign}
    VoiceAgent.objects.create(**agent, url="wss://agent.example.com/x")
    (call,) = provider.accept_calls(1)
    assert apply(provider.voice(call)) == [None]


def test_purpose_without_a_group_handler_is_referred(provider: Provider) -> None:
    (call,) = provider.accept_calls(1)
    Call.objects.filter(pk=call.pk).update(purpose="test")
    assert apply(provider.ringing(call)) == [None]
    assert handlers.handler_for("test")
