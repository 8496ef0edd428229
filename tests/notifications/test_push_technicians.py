"""Technicians get in their browsers what they are texted: offers, jobs, and changes of jobs."""

from __future__ import annotations

import pytest

from dispatch.core import events
from dispatch.jobs.models import Job
from dispatch.jobs.services import actions
from notifications import loops
from notifications.models import PushMessage
from notifications.services import push_keys, push_subscriptions
from tests.harness.jobs import Floor
from tests.jobs.conftest import floor  # noqa: F401
from tests.notifications.push_service import PushService

pytestmark = pytest.mark.django_db(transaction=True)


def send() -> None:
    while loops.send_push() == 0:
        pass


def test_offer_acceptance_and_cancellation_reach_the_technician(
    push_service: PushService, floor: Floor  # noqa: F811
) -> None:  # fmt: skip
    (ann,) = floor.crew("Ann")
    browser = push_service.browser("phone")
    browser.server_key = push_keys.load_keys().public
    push_subscriptions.subscribe(floor.organization, ann, browser.subscription, agent="", actor=events.SYSTEM)
    submission = floor.submit()
    call = floor.rings(ann)
    send()
    (offer,) = push_service.pushed
    assert offer.payload["title"] == "You have a job offer"
    assert offer.payload["url"].startswith("/o/")
    assert offer.ttl_s < 600
    assert offer.headers["Urgency"] == "high"
    call.answer().press("1")
    floor.until(lambda: floor.status(submission) == "assigned")
    send()
    job = Job.objects.get()
    accepted = push_service.pushed[1].payload
    assert (accepted["title"], accepted["url"][:3]) == ("The job is yours", "/t/")
    assert str(job.customer_phone) not in str(accepted)
    assert job.customer_name not in str(accepted)
    actions.cancel(job.pk, "the customer called", actor=events.SYSTEM)
    send()
    assert push_service.pushed[2].payload["title"] == "Your job was canceled"
    assert push_service.pushed[2].payload["tag"] == accepted["tag"], "it replaces the earlier one"


def test_offer_that_ended_is_not_shown(push_service: PushService, floor: Floor) -> None:  # noqa: F811
    (ann,) = floor.crew("Ann")
    browser = push_service.browser("phone")
    push_subscriptions.subscribe(floor.organization, ann, browser.subscription, agent="", actor=events.SYSTEM)
    submission = floor.submit()
    floor.rings(ann).answer().press("2")
    floor.until(lambda: floor.status(submission) == "pending")
    send()
    assert push_service.pushed == []
    assert set(PushMessage.objects.values_list("purpose", "status")) == {("offer", "dropped")}
