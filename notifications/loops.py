"""The notifier: events become notifications."""

from django.conf import settings

from dispatch.core.loops import Loop
from dispatch.core.readers import EventReader
from notifications import rules, services

reader = EventReader("notifications", services.handle, rules.KINDS)


def step() -> float | None:
    """One batch of events; again at once while there are more."""
    return 0 if reader.step() else None


LOOPS = [Loop("notifier", step, settings.EVENT_READER_INTERVAL_S, elected=True)]
