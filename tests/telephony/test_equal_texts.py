"""Equal texts to one phone are each resolved to their own message, and none is sent twice."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import requests

from dispatch.core import clock
from dispatch.telephony.models import Text
from dispatch.telephony.providers.base import ListedText, TextReport
from dispatch.telephony.rules import match_requests
from dispatch.telephony.services import inbound
from tests.telephony.conftest import ANN, Caller, create_text

BODY = "Your technician is on the way."
NOON = datetime(2026, 7, 1, 12, tzinfo=UTC)


def listed(*seconds: float | None) -> list[ListedText]:
    """Texts that were created these seconds after noon, in the order of creation, listed newest first."""
    texts = [
        ListedText(f"SM{n}", "sent", None if second is None else NOON + timedelta(seconds=second), BODY)
        for n, second in enumerate(seconds)
    ]
    return texts[::-1]


@pytest.mark.parametrize(
    ("requested", "created", "matched"),
    [
        ([0, 5], [0, 5], ["SM0", "SM1"]),
        ([0, 5], [1, 1], ["SM0", "SM1"]),  # listed with the same second
        ([0, 5], [5], [None, "SM0"]),
        ([0, 5], [0], ["SM0", None]),
        ([0, 5], [], [None, None]),
        ([0, 5], [-40, 5], [None, "SM1"]),  # the first is older than both
        ([0, 5], [-40, 0, 6, 90], ["SM1", "SM2"]),
        ([0, 5], [None], ["SM0", None]),
        ([0, 5, 10], [5, 10], [None, "SM0", "SM1"]),
        ([], [0], []),
    ],
)
def test_equal_requests_are_matched_in_the_order_of_time(requested, created, matched) -> None:
    found = match_requests(listed(*created), [NOON + timedelta(seconds=second) for second in requested])
    assert [one and one.sid for one in found] == matched


def in_doubt(texter: Caller, subject_id: int, status: str = "unknown", in_s: float = 0.0) -> Text:
    """A text whose request was sent about now, and whose outcome is not known."""
    text = create_text(texter, subject_id=subject_id, body=BODY)
    now = clock.now() + timedelta(seconds=in_s)
    Text.objects.filter(pk=text.pk).update(status=status, requested_at=now, send_by=now + timedelta(seconds=5))
    return text


def at_the_provider(texter: Caller) -> str:
    """The SID of such a text that the provider has accepted now, without a webhook."""
    answer = requests.post(
        f"{texter.sim.base_url}/2010-04-01/Accounts/{texter.sim.account_sid}/Messages.json",
        data={"To": ANN, "From": str(texter.number.phone), "Body": BODY},
        auth=(texter.sim.account_sid, texter.sim.auth_token),
        timeout=60,
    )
    return str(answer.json()["sid"])


def resolve(step: Callable, passes: int = 3) -> None:
    for _ in range(passes):
        step("texts_reconciler")
        step("texts")
        clock.travel(61)


def sids(*texts: Text) -> list[str | None]:
    return [Text.objects.get(pk=text.pk).sid for text in texts]


def statuses(*texts: Text) -> list[str]:
    return [Text.objects.get(pk=text.pk).status for text in texts]


def test_both_listed_texts_go_to_their_own_rows(texter: Caller, step: Callable) -> None:
    first, second = in_doubt(texter, 1), in_doubt(texter, 2, in_s=1.0)
    sid_of_first, sid_of_second = at_the_provider(texter), at_the_provider(texter)
    resolve(step)
    assert sids(first, second) == [sid_of_first, sid_of_second]
    assert not {"unknown", "not_sent"} & set(statuses(first, second))
    assert len(texter.sim.messages(to=ANN)) == 2


@pytest.mark.parametrize("arrived", [0, 1])
def test_one_listed_text_goes_to_the_request_that_made_it(texter: Caller, step: Callable, arrived: int) -> None:
    sid = at_the_provider(texter)
    texts = [in_doubt(texter, n, in_s=15.0 * (n - arrived)) for n in range(2)]
    resolve(step, passes=5)
    assert sids(*texts) == [sid if n == arrived else None for n in range(2)]
    assert statuses(texts[1 - arrived]) == ["not_sent"]
    assert len(texter.sim.messages(to=ANN)) == 1


def test_listed_text_waits_for_an_equal_request_in_progress(texter: Caller, step: Callable) -> None:
    unknown = in_doubt(texter, 1)
    asked = in_doubt(texter, 2, "requesting")
    sid = at_the_provider(texter)
    Text.objects.filter(pk=asked.pk).update(send_by=clock.now() + timedelta(hours=1))
    resolve(step, passes=1)
    assert (sids(unknown, asked), statuses(unknown)) == ([None, None], ["unknown"])
    Text.objects.filter(pk=asked.pk).update(sid=sid, status="submitted")  # its response
    resolve(step, passes=4)
    assert sids(unknown, asked) == [None, sid]
    assert statuses(unknown) == ["not_sent"]


def report(texter: Caller, sid: str) -> TextReport:
    return TextReport(sid=sid, account_sid=texter.account.account_sid, status="delivered")


def test_webhook_corrects_a_wrong_match(texter: Caller, step: Callable) -> None:
    wrong, right = in_doubt(texter, 1), in_doubt(texter, 2)
    sid = at_the_provider(texter)
    values: dict[str, Any] = {"sid": sid, "status": "sent", "checked_at": clock.now(), "submitted_at": clock.now()}
    Text.objects.filter(pk=wrong.pk).update(**values)
    inbound.apply_text_report(right.pk, report(texter, sid))
    assert sids(wrong, right) == [None, sid]
    assert statuses(wrong, right) == ["unknown", "delivered"]
    resolve(step, passes=4)
    assert statuses(wrong, right) == ["not_sent", "delivered"]


def test_webhooks_of_two_exchanged_texts_put_both_right(texter: Caller) -> None:
    texts = [in_doubt(texter, n) for n in range(2)]
    found = [at_the_provider(texter) for _ in range(2)]
    for text, sid in zip(texts, reversed(found), strict=True):
        Text.objects.filter(pk=text.pk).update(sid=sid, status="sent", checked_at=clock.now())
    inbound.apply_text_report(texts[0].pk, report(texter, found[0]))
    inbound.apply_text_report(texts[1].pk, report(texter, found[1]))
    assert sids(*texts) == found
    assert statuses(*texts) == ["delivered", "delivered"]
