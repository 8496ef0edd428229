"""The outbox's alerts refer to existing outcomes."""

from __future__ import annotations

import pytest

from dispatch.outbox.rules import responses
from tests.core.test_alerts import parse, rules

OUTCOMES = {responses.DELIVERED, responses.DEFERRED, responses.FAILED, responses.PERMANENT}


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_outcomes_of_calls_are_those_that_are_counted(rule):
    for name, matchers in parse(rule["expr"]):
        if name == "dispatch_outbox_calls_total" and "outcome" in matchers:
            assert set(matchers["outcome"][1].split("|")) <= OUTCOMES
