"""Run the loop of hang-ups whenever it is notified, as a dispatcher does, since tests run no dispatcher.

A pass skips a call that a webhook has locked, or that the provider did not end. The dispatcher repeats its pass.
Every wait of a test therefore repeats it, too.
"""

from __future__ import annotations

import pytest
from django.db import connection, transaction

from dispatch.core import clock
from dispatch.telephony.models import Call
from dispatch.telephony.services import calls, hang_ups
from tests.support import waiting


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    was_notified = False

    def run_now(loop_name: str) -> None:
        nonlocal was_notified
        assert loop_name == calls.HANG_UP_LOOP
        was_notified = True
        transaction.on_commit(hang_ups.hang_up_due, robust=True)

    def repeat() -> None:
        if not was_notified or connection.in_atomic_block:
            return
        if Call.objects.filter(hang_up_at__lte=clock.now(), sid__isnull=False).exists():
            hang_ups.hang_up_due()

    monkeypatch.setattr(calls, "notify_loop", run_now)
    monkeypatch.setattr(waiting, "between_polls", repeat)
