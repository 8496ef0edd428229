"""A provider that accepts requests and never answers them delays no notifier."""

from __future__ import annotations

from typing import Any

import pytest

from dispatch.telephony.models import Call
from dispatch.telephony.request_threads import CALLS
from tests.harness.black_hole import black_hole
from tests.notifications.conftest import Watch
from tests.support.waiting import PATIENCE, wait_until

pytestmark = pytest.mark.django_db(transaction=True)


def test_notifier_goes_on_while_the_provider_hangs(watch: Watch, settings: Any) -> None:
    settings.PROVIDER_TIMEOUT_S = PATIENCE
    watch.dispatcher("Ana")
    watch.alert()
    sim = watch.floor.sim
    with black_hole(sim.account_sid, sim.base_url) as hole:
        watch.after(121)
        wait_until(lambda: hole.held() == 1)
        assert Call.objects.get(purpose="alert").status == "requesting"
        hole.give_back()
        wait_until(lambda: not CALLS.items())
