"""Run the loop of hang-ups whenever it is notified, as a dispatcher does, since tests run no dispatcher."""

from __future__ import annotations

import pytest
from django.db import transaction

from dispatch.telephony.services import calls, hang_ups


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    def run_now(loop_name: str) -> None:
        assert loop_name == calls.HANG_UP_LOOP
        transaction.on_commit(hang_ups.hang_up_due, robust=True)

    monkeypatch.setattr(calls, "notify_loop", run_now)
