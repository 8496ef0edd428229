"""Parts of pages that refresh themselves leave the keyboard's focus where it is."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from dispatch.core import clock
from dispatch.jobs.models import Job
from dispatch.outbox.models import Endpoint, Message, MessageGroup
from tests.support.tenants import tenant

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]


def test_refreshed_parts_keep_focus(app_url: str, sign_in: Callable[..., Page]) -> None:
    ours = tenant("Alphaville")
    Message.objects.filter(pk=ours.row(Message).pk).update(status="PENDING")
    Job.objects.filter(pk=ours.row(Job).pk).update(
        status="dispatching", pending_reason="", next_action_at=clock.now()
    )
    page = sign_in(ours.admin, path="/outbox/")
    page.clock.install()
    for path, part in (
        ("/outbox/", "#outbox-summary"),
        (f"/outbox/groups/{ours.row(MessageGroup).pk}/", "#group"),
        (f"/outbox/endpoints/{ours.row(Endpoint).pk}/", "#endpoint"),
        (f"/outbox/messages/{ours.row(Message).pk}/", "#message"),
        (f"/admin/jobs/job/{ours.row(Job).pk}/change/", "#job"),
    ):
        page.goto(app_url + path)
        controls = page.locator(part).locator("a:visible, [tabindex='0']:visible")
        for control in (controls.first, controls.last):
            control.focus()
            page.locator(part).evaluate("part => part.setAttribute('data-before', '')")
            page.clock.run_for(6_000)
            expect(page.locator(f"{part}:not([data-before])")).to_be_visible()
            expect(control, f"{path} keeps its focus").to_be_focused()
