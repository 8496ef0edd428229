"""The first job of a new worker calls a technician as soon as any other."""

from __future__ import annotations

import pytest
from django.conf import settings
from django.urls import reverse

from dispatch.capacity.models import OutboundNumber
from dispatch.core.models import EventCursor
from dispatch.core.runtime.queues import enqueue
from dispatch.jobs.models import CustomerTextPolicy, Offer
from dispatch.telephony.models import Text
from tests.chaos.test_cascade import child
from tests.jobs.test_customer_texts import ALL, tell_provider
from tests.support.processes import running


def test_it_does_not_wait_for_the_pages_of_the_application(floor):
    """The URLs in the request and in the texts are built without all pages, which take half a second to load."""
    floor.crew("Ann")
    OutboundNumber.objects.filter(pk=floor.number.pk).update(sends_texts=True, texts_per_second=1000)
    tell_provider(floor)
    floor.set_policy(offer_by_text=True)
    CustomerTextPolicy.objects.create(organization=floor.organization, **ALL)
    job = floor.submit()
    enqueue(settings.DISPATCH_QUEUE, "tests.core.jobs.leave_if_absent", "dispatch.urls")
    with running("worker", settings.DISPATCH_QUEUE, "--burst", env=child(floor)) as worker:
        assert worker.ends() == 0, worker.log()
    offer = Offer.objects.get(job__submission=job)
    assert floor.calls_made(offer.technician) == 1
    assert set(Text.objects.values_list("purpose", flat=True)) == {"offer", "customer"}
    assert EventCursor.objects.filter(name="dispatch.urls").exists(), worker.log()


@pytest.mark.parametrize("name", ["webhook", "fallback", "text_status", "number"])
def test_webhooks_have_the_same_urls_without_the_pages(name):
    args = {"webhook": [7, "status"], "fallback": [], "text_status": [7], "number": [7, "sms"]}[name]
    path = reverse(f"telephony:{name}", urlconf="dispatch.telephony.root_urls", args=["twilio", *args])
    assert path == reverse(f"telephony:{name}", args=["twilio", *args])


@pytest.mark.parametrize("name", ["offer", "technician", "status"])
def test_links_in_texts_have_the_same_urls_without_the_pages(name):
    path = reverse(name, urlconf="dispatch.jobs.public.urls", args=["token"])
    assert path == reverse(f"pages:{name}", args=["token"])
