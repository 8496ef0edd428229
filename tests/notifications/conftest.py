"""Recipients of alerts, over the running application and the simulator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from accounts.models import Membership, Organization, User
from dispatch.core import clock
from dispatch.core.models import Event
from dispatch.telephony.loops import place_due
from notifications import loops
from notifications.models import Alert, Delivery, Notification
from tests.core.horizon import all_readable
from tests.harness.jobs import Floor
from tests.harness.lost_phones import lose_phone  # noqa: F401
from tests.jobs.conftest import floor  # noqa: F401
from tests.phones import Phone
from tests.support import factories as make
from tests.support.waiting import wait_until


class Watch:
    """An organization's recipients of alerts, and the loops that notify them. Nothing runs on its own."""

    def __init__(self, floor: Floor) -> None:  # noqa: F811
        self.floor = floor
        self.organization = floor.organization

    # --- People ---------------------------------------------------------------------------------------------
    def dispatcher(self, name: str, *, on_duty: bool = True, order: int = 100, phone: str | None = None) -> User:
        person = make.dispatcher(self.organization, name, on_duty=on_duty, alert_order=order)
        return self._with_phone(person, phone)

    def admin(self, name: str) -> User:
        return self._with_phone(make.admin(self.organization, name), None)

    def superuser(self, name: str) -> User:
        return self._with_phone(make.user(name, is_superuser=True), None)

    def _with_phone(self, person: User, phone: str | None) -> User:
        User.objects.filter(pk=person.pk).update(phone=make.phone() if phone is None else phone)
        person.refresh_from_db()
        return make.confirm_phone(self.organization, person)

    def phone(self, person: User) -> Phone:
        return self.floor.sim.phone(str(person.phone))

    def off_duty(self, person: User) -> None:
        Membership.objects.filter(user=person).update(on_duty=False)

    # --- Actions --------------------------------------------------------------------------------------------
    def alert(self) -> Alert:
        """Create a job without a technician nearby, and return its alert."""
        submission = self.floor.submit()
        self.floor.until(lambda: self.floor.status(submission) == "pending")
        self.notify()
        return Alert.objects.latest("pk")

    def notify(self) -> None:
        all_readable()
        while loops.step() == 0:
            pass

    def run(self) -> None:
        """Run one pass of the loops that escalate, call, text and email."""
        loops.escalate()
        loops.use_phone()
        loops.send_email()
        place_due()

    def after(self, seconds: float) -> None:
        """Move the clock forward."""
        clock.travel(seconds)
        self.run()

    def until(self, condition: Callable[[], Any], what: str = "") -> Any:
        """Run the loops until the condition holds."""

        def so() -> Any:
            self.run()
            return condition()

        return wait_until(so, message=lambda: f"{what}\n{self.story()}")

    def rings(self, person: User) -> Any:
        """Return the call that is ringing this person."""
        return self.phone(person).rings()

    def called(self, person: User) -> int:
        """Return how many calls to this person the provider created."""
        return self.floor.sim.creates_to(str(person.phone))

    # --- Observations ---------------------------------------------------------------------------------------
    def ways(self, alert: Alert) -> list[tuple[str, str, str]]:
        """Return (person, channel, status) of the deliveries, in order."""
        rows = Delivery.objects.filter(notification__alert=alert).select_related("notification__user")
        return [(row.notification.user.name, row.channel, row.status) for row in rows.order_by("pk")]

    def kinds(self, alert: Alert) -> list[str]:
        found = Event.objects.filter(kind__contains=".alert_", subject_id=alert.subject_id).order_by("id")
        return [event.kind.partition(".")[2] for event in found]

    def story(self) -> str:
        rows = [f"{row.user.name}: {row.title} {row.acknowledged_at}" for row in Notification.objects.all()]
        ways = [f"{row} to {row.notification.user}: {row.error}" for row in Delivery.objects.order_by("pk")]
        return "\n".join([*rows, *ways, self.floor.story()])


@pytest.fixture
def watch(floor: Floor) -> Watch:  # noqa: F811
    return Watch(floor)


@pytest.fixture
def office() -> Organization:
    return make.organization("Desert Air")


@pytest.fixture
def dora(office: Organization) -> User:
    return make.dispatcher(office, "Dora", on_duty=True)
