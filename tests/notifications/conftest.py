"""People whom alerts reach, over the running application and the simulator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from accounts.models import Membership, User
from dispatch.core import clock
from dispatch.core.models import Event
from dispatch.telephony.loops import place_due
from notifications import loops
from notifications.models import Alert, Delivery, Notification
from tests import factories as make
from tests.core.horizon import all_readable
from tests.jobs.conftest import floor  # noqa: F401
from tests.jobs.floor import Floor
from tests.phones import Phone
from tests.waiting import wait_until


class Watch:
    """Those who hear of an organization's alerts, and the loops that tell them. Nothing runs by itself."""

    def __init__(self, floor: Floor) -> None:  # noqa: F811
        self.floor = floor
        self.organization = floor.organization

    # --- who is there ---------------------------------------------------------------------------------------
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
        return person

    def phone(self, person: User) -> Phone:
        return self.floor.sim.phone(str(person.phone))

    def off_duty(self, person: User) -> None:
        Membership.objects.filter(user=person).update(on_duty=False)

    # --- what happens ---------------------------------------------------------------------------------------
    def alert(self) -> Alert:
        """A job that nobody can take: no technician is near."""
        submission = self.floor.submit()
        self.floor.until(lambda: self.floor.status(submission) == "pending")
        self.notify()
        return Alert.objects.latest("pk")

    def notify(self) -> None:
        all_readable()
        while loops.step() == 0:
            pass

    def run(self) -> None:
        """One pass of the loops that escalate, call, text and mail."""
        loops.escalate()
        loops.use_phone()
        loops.send_email()
        place_due()

    def after(self, seconds: float) -> None:
        """So much later."""
        clock.travel(seconds)
        self.run()

    def until(self, condition: Callable[[], Any], what: str = "") -> Any:
        """Lets the loops run until that is so."""

        def so() -> Any:
            self.run()
            return condition()

        return wait_until(so, message=lambda: f"{what}\n{self.story()}")

    def rings(self, person: User) -> Any:
        """The call that reaches this person now."""
        return self.phone(person).rings()

    def called(self, person: User) -> int:
        """How many calls to this person the provider really made."""
        return self.floor.sim.creates_to(str(person.phone))

    # --- what one sees --------------------------------------------------------------------------------------
    def ways(self, alert: Alert) -> list[tuple[str, str, str]]:
        """(person, channel, status) of what was sent out, in order."""
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
