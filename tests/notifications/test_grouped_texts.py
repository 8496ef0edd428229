"""Many texts from one customer or technician are one notification, which counts them."""

from __future__ import annotations

import pytest

from dispatch.core import clock, events
from dispatch.core.events import Actor
from dispatch.core.models import Event
from notifications import services
from notifications.models import Delivery, Notification, Preference, Route
from notifications.services.notifications import handle
from tests.harness.customer_texts import ALL, Shop
from tests.jobs.test_threads import Desk
from tests.support import factories

pytestmark = pytest.mark.django_db


@pytest.fixture
def shop() -> Shop:
    return Shop(**ALL)


@pytest.fixture
def desk() -> Desk:
    return Desk()


class Reader:
    """The event reader: each call handles the events since the last one."""

    last = 0

    def __call__(self) -> None:
        batch = list(Event.objects.filter(pk__gt=self.last).order_by("pk"))
        handle(batch)
        self.last = batch[-1].pk


@pytest.fixture
def notify() -> Reader:
    return Reader()


def titles(kind: str) -> list[str]:
    return list(Notification.objects.filter(kind=kind).order_by("pk").values_list("title", flat=True))


def test_five_texts_of_a_customer_are_one_notification(shop, notify):
    job = shop.job()
    for n in range(1, 6):
        shop.replies(f"Hello {n}")
        notify()
    assert titles("job.customer_replied") == [f"5 new texts from Dana Whitfield about job {job.pk}"]
    (row,) = Notification.objects.filter(kind="job.customer_replied")
    assert row.body.startswith("“Hello 5”"), "the newest text is shown"


def test_burst_that_is_handled_at_once_is_counted_the_same(shop, notify):
    job = shop.job()
    for n in range(1, 4):
        shop.replies(f"Hello {n}")
    notify()
    assert titles("job.customer_replied") == [f"3 new texts from Dana Whitfield about job {job.pk}"]


def test_event_that_is_handled_again_is_counted_once(shop):
    job = shop.job()
    for n in range(1, 4):
        shop.replies(f"Hello {n}")
    for _ in range(2):
        handle(list(Event.objects.order_by("pk")))
    assert titles("job.customer_replied") == [f"3 new texts from Dana Whitfield about job {job.pk}"]


def test_texts_after_the_notification_was_read_are_a_new_one(shop, notify):
    job = shop.job()
    for n in range(1, 3):
        shop.replies(f"Hello {n}")
        notify()
    services.read(shop.maria, shop.organization.pk)
    shop.replies("Hello 3")
    notify()
    assert titles("job.customer_replied")[1:] == [f"The customer of job {job.pk} texted"]
    shop.replies("Hello 4")
    notify()
    assert titles("job.customer_replied")[1:] == [f"2 new texts from Dana Whitfield about job {job.pk}"]


def test_each_person_has_a_count(shop, notify):
    other = factories.dispatcher(shop.organization, "Olga")
    job = shop.job()
    shop.replies("Hello 1")
    notify()
    services.read(shop.maria, shop.organization.pk)
    shop.replies("Hello 2")
    notify()
    assert [row.title for row in services.unread_of(other, shop.organization.pk)] == [
        f"2 new texts from Dana Whitfield about job {job.pk}"
    ]
    assert [row.title for row in services.unread_of(shop.maria, shop.organization.pk)] == [
        f"The customer of job {job.pk} texted"
    ]


def test_old_unread_notification_is_not_brought_back(shop, notify):
    job = shop.job()
    shop.replies("Hello 1")
    notify()
    clock.travel(601)
    shop.replies("Hello 2")
    notify()
    assert titles("job.customer_replied") == [f"The customer of job {job.pk} texted"] * 2


def test_requests_are_counted_apart(shop, notify):
    first = shop.job()
    second = shop.job(customer_phone="+16025550124", customer_name="Zoe")
    for phone in ("+16025550123", "+16025550124", "+16025550124"):
        shop.replies("Hello", phone=phone)
        notify()
    assert titles("job.customer_replied") == [
        f"The customer of job {first.pk} texted",
        f"2 new texts from Zoe about job {second.pk}",
    ]


def test_five_texts_of_a_technician_are_one_notification(desk, notify):
    job = desk.assigned()
    for n in range(1, 6):
        desk.texts(f"Where is it? {n}")
        notify()
    assert titles("job.text_received") == [f"5 new texts from Ann about job {job.pk}"]


def test_technicians_are_counted_apart(desk, notify):
    job = desk.assigned()
    bea = factories.technician(desk.organization, "Bea")
    desk.texts("Where is it?")
    notify()
    for _ in range(2):
        events.append(
            job.organization_id, "job.text_received", job.pk, actor=Actor("technician", bea.pk, "Bea"),
            technician_id=bea.pk, technician="Bea", is_main=True, body="Me too",
        )  # fmt: skip
        notify()
    assert titles("job.text_received") == [
        f"Ann texted about job {job.pk}",
        f"2 new texts from Bea about job {job.pk}",
    ]


def test_a_burst_sends_one_email(shop, notify):
    Preference.objects.create(
        organization=shop.organization, user=shop.maria, kind="job.customer_replied", email=True
    )
    shop.job()
    for n in range(1, 6):
        shop.replies(f"Hello {n}")
        notify()
    assert Delivery.objects.filter(channel="email").count() == 1


def test_texts_that_an_admin_made_critical_raise_one_alert_each(shop, notify):
    Route.objects.create(organization=shop.organization, kind="job.customer_replied", level="critical")
    job = shop.job()
    for n in range(1, 3):
        shop.replies(f"Hello {n}")
        notify()
    assert titles("job.customer_replied") == [f"The customer of job {job.pk} texted"] * 2
