"""Loops of the dispatcher process for the console: reports by email."""

from __future__ import annotations

from dispatch.console.reports import subscriptions
from dispatch.core.runtime.loops import Loop

LOOPS = [
    Loop("report_mail", subscriptions.send_due, subscriptions.INTERVAL_S, elected=True, limit_s=300.0),
]
