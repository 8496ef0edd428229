"""Keys in calls of leads are recorded and applied in one group, and answered after its commit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from dispatch.core import clock
from dispatch.leads.models import DispositionRule, DoNotCall, KeyBranch, Lead, VoiceAgent
from dispatch.telephony.models import Call, CallEvent, Text
from dispatch.telephony.services import keys, report_groups, report_signers
from tests.harness.grouped_reports import (
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
from tests.support.row_locks import held
from tests.support.waiting import wait_until

BRANCHES: dict[str, dict[str, Any]] = {
    "1": {"action": "say", "say": "Thank you {name}.", "disposition": "interested"},
    "2": {"action": "later", "say": "Until later.", "call_back_h": 5},
    "3": {"action": "say", "say": "We send <it>."},
    "4": {"action": "say", "disposition": "wants_quote"},  # a text follows
    "5": {"action": "text", "say": "A text follows.", "text": "Hello {name}."},
    "6": {"action": "say"},
}


@pytest.fixture
def provider(app_url: str) -> Iterator[Provider]:
    floor = Floor("twilio", lines=50)
    floor.campaign.script = "Hello {name}."
    floor.campaign.opt_out_key = "9"
    floor.campaign.save()
    of = {"organization": floor.organization, "campaign": floor.campaign}
    for key, fields in BRANCHES.items():
        KeyBranch.objects.create(key=key, **of, **fields)
    DispositionRule.objects.create(disposition="wants_quote", text="Your quote, {name}.", **of)
    yield Provider(floor)
    floor.stop()


# --- The same as without groups


def press_once(by: Provider, call: Call, key: str) -> list[Signed]:
    return [by.voice(call), by.key(call, key), by.ended(call)]


PLAYS: dict[str, Callable[[Provider, Call], list[Signed]]] = {
    **{f"key {key}": partial(press_once, key=key) for key in "1234569"},
    "unknown key, then known": lambda by, call: [
        by.voice(call), by.key(call, "8"), by.key(call, "1", step=2), by.ended(call),
    ],
    "star, then no key": lambda by, call: [
        by.key(call, "*", keys="12s"), by.key(call, "", step=2), by.ended(call),
    ],
    "key that was not offered": lambda by, call: [by.key(call, "1", keys="23"), by.ended(call)],
    "no keys offered": lambda by, call: [by.key(call, "1", keys=""), by.ended(call)],
    "two keys, both recorded": lambda by, call: [by.key(call, "1"), by.key(call, "2", step=2), by.ended(call)],
    "same key at two steps": lambda by, call: [by.key(call, "1"), by.key(call, "1", step=2), by.ended(call)],
    "several digits": lambda by, call: [by.key(call, "12"), by.ended(call)],
    "repeated": lambda by, call: [by.key(call, "2")] * 2 + [by.ended(call)] * 2,
    "after the end": lambda by, call: [by.ended(call), by.key(call, "1")],
    "call back after the end": lambda by, call: [
        by.voice(call), by.ended(call), by.key(call, "2"), by.key(call, "2"),
    ],
    "opt-out after the end": lambda by, call: [by.ended(call), by.key(call, "9")],
    "key without prompt": lambda by, call: [by.key(call, "6"), by.ended(call)],
    "without a step": lambda by, call: [by.sign(call, "gather", Digits="1", CallStatus="in-progress")],
    "step beyond the last": lambda by, call: [by.key(call, "1", step=100)],
    "odd query": lambda by, call: [by.sign(call, "gather?keys=1&step=1", Digits="1", CallStatus="in-progress")],
    "escaped key": lambda by, call: [by.sign(call, "gather?step=1&keys=%31", CallStatus="in-progress", Digits=1)],
    "key with the end": lambda by, call: [by.key(call, "1", CallStatus="completed"), by.ended(call)],
    "machine": lambda by, call: [by.key(call, "1", AnsweredBy="machine_start"), by.ended(call)],
    "wrong signature": lambda by, call: [by.key(call, "1", token="another")],
    "other keys than signed": lambda by, call: [
        by.key(call, "9", keys="1")._replace(path=f"/telephony/twilio/calls/{call.pk}/gather?step=1&keys=9")
    ],
    "query of another kind": lambda by, call: [by.sign(call, "voice?step=1&keys=1", CallStatus="in-progress")],
}  # fmt: skip


@pytest.mark.parametrize("name", PLAYS)
def test_route_and_django_respond_and_write_the_same(provider: Provider, name: str) -> None:
    found = []
    for post in (Signed.post, Signed.post_to_django):
        (call,) = provider.accept_calls(1)
        responses = [post(request) for request in PLAYS[name](provider, call)]
        said = [response.content.replace(f"/{call.pk}/".encode(), b"/id/") for response in responses]
        lead = Lead.objects.get(pk=call.subject_id)
        found.append(
            {
                "codes": [response.status_code for response in responses],
                "said": said,
                "types": [response.headers.get("Content-Type") for response in responses],
                "waiting": [event.next_action_at is not None for event in CallEvent.objects.filter(call=call)],
                "outcome": (lead.disposition, lead.call_back_at is not None),
                "listed": DoNotCall.objects.filter(phone=call.to_phone).exists(),
                "texts": list(Text.objects.filter(to_phone=call.to_phone).values_list("body", "attempt")),
                **rows_of(call),
            }
        )
    assert found[0] == found[1]


def test_plain_keys_do_not_reach_django(provider: Provider, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dispatch.telephony.webhooks.receive_webhook", lambda *_: 1 / 0)
    interested, later, unknown = provider.accept_calls(3)
    for call, key in ((interested, "1"), (later, "2"), (unknown, "8")):
        said = [
            request.post() for request in (provider.voice(call), provider.key(call, key), provider.ended(call))
        ]
        assert [response.status_code for response in said] == [200, 200, 204]
    assert statuses([interested, later, unknown]) == ["completed"] * 3
    floor = provider.floor
    assert floor.lead(interested.subject_id).disposition == "interested"
    assert floor.lead(interested.subject_id).outcome == "answered"
    again = floor.lead(later.subject_id)
    assert (again.status, again.reason) == ("backlog", "call_back")
    assert timedelta(hours=4) < again.due_at - clock.now() < timedelta(hours=6)
    assert floor.lead(unknown.subject_id).outcome == "answered"
    floor.assert_nothing_held()


def test_key_and_end_of_one_group_are_applied_in_this_order(provider: Provider) -> None:
    (call,) = provider.accept_calls(1)
    answers = apply(provider.voice(call), provider.key(call, "2"), provider.ended(call))
    assert None not in answers
    lead = provider.floor.lead(call.subject_id)
    assert (lead.status, lead.reason, lead.call_back_at) == ("backlog", "call_back", None)
    assert [kind for kind, _, _ in rows_of(call)["lead events"]][-2:] == ["lead.outcome_reported", "lead.again"]


def test_repeated_key_in_one_group_counts_once(provider: Provider) -> None:
    (call,) = provider.accept_calls(1)
    key = provider.key(call, "1")
    first, second = apply(key, key)
    assert first == second is not None
    assert Call.objects.get(pk=call.pk).keys_pressed == "1"
    assert [kind for kind, _, _ in rows_of(call)["lead events"]].count("lead.outcome_reported") == 1


def test_recorded_key_that_nobody_applied_is_referred_with_its_end(provider: Provider) -> None:
    """As after the web process died between recording the key and applying it."""
    (call,) = provider.accept_calls(1)
    key = provider.key(call, "2")
    assert key.post().status_code == 200
    Lead.objects.filter(pk=call.subject_id).update(call_back_at=None)
    CallEvent.objects.filter(call=call).update(next_action_at=clock.now())
    assert apply(provider.ended(call)) == [None]
    assert apply(key, provider.ended(call)) == [None, None]
    assert provider.ended(call).post().status_code == 204
    assert provider.floor.lead(call.subject_id).reason == "call_back"
    assert not CallEvent.objects.exclude(next_action_at=None).exists()


def test_unapplied_key_of_an_earlier_call_is_applied_before_the_end(provider: Provider) -> None:
    """`find_waiting` looks at all calls of the lead, as the end of a call does that is applied alone."""
    (call,) = provider.accept_calls(1)
    assert provider.key(call, "3").post().status_code == 200
    assert keys.find_waiting("lead", [call.subject_id]) == set()
    CallEvent.objects.filter(call=call).update(next_action_at=clock.now())
    assert keys.find_waiting("lead", [call.subject_id]) == {call.subject_id}
    assert keys.find_waiting("offer", [call.subject_id]) == set()


def test_key_of_a_locked_lead_waits_alone(provider: Provider) -> None:
    locked, free = provider.accept_calls(2)
    with held(Lead.objects.get(pk=locked.subject_id), lock="FOR NO KEY UPDATE"):
        answers = apply(provider.key(locked, "1"), provider.key(free, "1"))
    assert [answer is not None for answer in answers] == [False, True]
    assert not CallEvent.objects.filter(call=locked).exists()
    assert provider.key(locked, "1").post().status_code == 200
    assert {provider.floor.lead(call.subject_id).disposition for call in (locked, free)} == {"interested"}


def test_key_of_an_older_attempt_changes_nothing(provider: Provider) -> None:
    (call,) = provider.accept_calls(1)
    Lead.objects.filter(pk=call.subject_id).update(token=7)
    assert apply(provider.key(call, "1")) == [None]
    assert provider.key(call, "1").post().status_code == 200
    assert provider.floor.lead(call.subject_id).disposition == ""


def test_key_in_a_canceled_call_is_referred(provider: Provider) -> None:
    (call,) = provider.accept_calls(1)
    Call.objects.filter(pk=call.pk).update(cancel_requested_at=clock.now())
    assert apply(provider.key(call, "1")) == [None]


def test_key_with_a_voice_agent_is_referred(provider: Provider) -> None:
    of = {"organization": provider.floor.organization, "campaign": provider.floor.campaign}
    VoiceAgent.objects.create(**of, url="wss://agent.example.com/x")
    (call,) = provider.accept_calls(1)
    assert apply(provider.key(call, "1")) == [None]


# --- A key that arrives after the end of its call


def press_after_end(provider: Provider, call: Call, key: str = "2") -> Lead:
    """Report that key after the end of the call, and return its lead."""
    for request in (provider.voice(call), provider.ended(call), provider.key(call, key)):
        assert request.post().status_code < 300
    return provider.floor.lead(call.subject_id)


def test_late_call_back_opens_the_lead_again(provider: Provider) -> None:
    (call,) = provider.accept_calls(1)
    lead = press_after_end(provider, call)
    assert (lead.status, lead.reason, lead.attempts, lead.call_back_at) == ("backlog", "call_back", 0, None)
    assert timedelta(hours=4) < lead.due_at - clock.now() < timedelta(hours=6)
    assert provider.floor.told(lead.pk)[-3:] == ["finished", "reopened", "outcome_reported"]
    clock.travel(5 * 3600 + 1)
    provider.floor.promote()
    assert len(provider.floor.claim().calls) == 1


def test_late_call_back_counts_once(provider: Provider) -> None:
    (call,) = provider.accept_calls(1)
    planned = press_after_end(provider, call)
    clock.travel(60)
    for step in (1, 2):
        assert provider.key(call, "2", step=step).post().status_code == 200
    lead = provider.floor.lead(call.subject_id)
    assert (lead.due_at, lead.attempts) == (planned.due_at, 0)
    assert provider.floor.told(lead.pk).count("reopened") == 1


def test_late_call_back_moves_the_retry_of_its_call(provider: Provider) -> None:
    (call,) = provider.accept_calls(1)
    assert provider.ended(call).post().status_code == 204  # nobody fetched the script: the attempt failed
    assert provider.floor.lead(call.subject_id).reason == "retry"
    assert provider.key(call, "2").post().status_code == 200
    lead = provider.floor.lead(call.subject_id)
    assert (lead.status, lead.reason, lead.attempts) == ("backlog", "call_back", 0)
    assert timedelta(hours=4) < lead.due_at - clock.now() < timedelta(hours=6)


def test_late_key_follows_the_rule_for_its_outcome(provider: Provider) -> None:
    (call,) = provider.accept_calls(1)
    lead = press_after_end(provider, call, "4")
    assert (lead.status, lead.reason, lead.disposition, lead.attempts) == ("backlog", "retry", "wants_quote", 1)
    assert timedelta(hours=23) < lead.due_at - clock.now() <= timedelta(hours=24)


def test_late_call_back_does_not_open_a_canceled_lead(provider: Provider) -> None:
    (call,) = provider.accept_calls(1)
    Lead.objects.filter(pk=call.subject_id).update(cancel_requested_at=clock.now())
    assert press_after_end(provider, call).status == "finished"


def test_late_call_back_leaves_another_open_lead_to_the_phone_alone(provider: Provider) -> None:
    (call,) = provider.accept_calls(1)
    for request in (provider.voice(call), provider.ended(call)):
        assert request.post().status_code < 300
    provider.floor.add(str(call.to_phone), at=provider.floor.due_in(3600))
    KeyBranch.objects.filter(key="2").update(disposition="asked_later")
    assert provider.key(call, "2").post().status_code == 200
    lead = provider.floor.lead(call.subject_id)
    assert (lead.status, lead.disposition) == ("finished", "asked_later")


def test_late_call_back_after_the_next_call_changes_nothing(provider: Provider) -> None:
    (call,) = provider.accept_calls(1)
    for request in (provider.voice(call), provider.ended(call)):
        assert request.post().status_code < 300
    Lead.objects.filter(pk=call.subject_id).update(token=2)
    assert provider.key(call, "2").post().status_code == 200
    assert provider.floor.lead(call.subject_id).status == "finished"


# --- Attacks


def test_key_signed_by_another_tenant_opens_nothing(provider: Provider) -> None:
    stranger = Provider(Floor("twilio", account_sid=provider.floor.account.account_sid, auth_token="chosen"))
    (call,) = provider.accept_calls(1)
    (theirs,) = stranger.accept_calls(1)
    report_signers.reset()  # else the forged ones would not reach a group
    forged = provider.key(call, "9", token="chosen")
    swapped = stranger.sign(theirs, "gather?step=1&keys=9", call_id=call.pk, Digits="9", CallStatus="in-progress")
    answers = apply(stranger.key(theirs, "8"), forged, swapped, provider.key(call, "3"))
    assert [answer is not None for answer in answers] == [True, False, False, True]
    assert [request.post().status_code for request in (forged, swapped)] == [403, 403]
    assert not DoNotCall.objects.exists()
    assert Call.objects.get(pk=call.pk).keys_pressed == "3"
    stranger.floor.stop()


def test_poisoned_key_hurts_only_itself(provider: Provider, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = provider.accept_calls(4)
    poisoned = calls[2].subject_id
    monkeypatch.setattr("dispatch.telephony.webhooks.receive_webhook", lambda *_: 1 / 0)
    apply_keys: Any = route_work().apply_keys

    def fail(self: Any, pressed: Any) -> None:
        if any(report.call.subject_id == poisoned for report in pressed):
            raise ValueError("poisoned")
        apply_keys(self, pressed)

    monkeypatch.setattr(route_work(), "apply_keys", fail)
    sizes = group_sizes(monkeypatch)
    with hold_groups() as release, ThreadPoolExecutor(4) as threads:
        started = [threads.submit(provider.key(calls[0], "1").post)]
        wait_until(lambda: sizes == [1])
        started += [threads.submit(provider.key(call, "1").post) for call in calls[1:]]
        wait_until(lambda: route()._groups.waiting == 3)
        release()
        codes = [one.result().status_code for one in started]
    assert codes == [200, 200, 500, 200]
    dispositions = [provider.floor.lead(call.subject_id).disposition for call in calls]
    assert dispositions == ["interested", "interested", "", "interested"]
    assert not CallEvent.objects.filter(call=calls[2]).exists()


def route_work() -> Any:
    from dispatch.leads.grouped_reports import LeadReports

    return LeadReports


def test_group_of_two_tenants_keeps_their_branches_apart(provider: Provider) -> None:
    other = Provider(Floor("twilio"))
    of = {"organization": other.floor.organization, "campaign": other.floor.campaign}
    KeyBranch.objects.create(**of, key="1", say="Other.", disposition="other")
    (call,) = provider.accept_calls(1)
    (theirs,) = other.accept_calls(1)
    first, second = apply(provider.key(call, "1"), other.key(theirs, "1"))
    assert first is not None
    assert second is not None
    assert (b"Thank you" in first.body, b"Other." in second.body) == (True, True)
    assert provider.floor.lead(call.subject_id).disposition == "interested"
    assert other.floor.lead(theirs.subject_id).disposition == "other"
    other.floor.stop()


def test_time_of_a_keys_arrival_is_recorded(provider: Provider) -> None:
    (call,) = provider.accept_calls(1)
    key = provider.key(call, "3").parsed()
    clock.travel(3)
    report_groups.apply_group([key])
    assert keys.keys_of("lead", call.subject_id) == [keys.PressedKey("3", key.arrived_at, is_applied=True)]
