"""Push notifications and the page without a connection, in Chromium.

A headless Chromium has no push service: `subscribe` returns a subscription at the tests' service, and DevTools
deliver to the service worker what that service decrypted. A `chromium-headless-shell` also denies every
notification, whatever the context grants; there, `showNotification` records what it is given.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import pytest
from django.db import connections
from playwright.sync_api import Page, Route, expect

from dispatch.jobs import signed_links
from notifications import loops
from notifications.models import PushSubscription
from tests.notifications.push_service import PushService
from tests.support import factories as make
from tests.support.waiting import wait_until

pytestmark = pytest.mark.browser

SUBSCRIBE = """
const given = %s; let current = null;
const own = { ...given, options: {}, toJSON: () => given };
own.unsubscribe = async () => { current = null; return true; };
PushManager.prototype.subscribe = async () => (current = own);
PushManager.prototype.getSubscription = async () => current;
"""
CLICK = """async (action) => {
  const [notification] = await self.registration.getNotifications();
  self.dispatchEvent(Object.assign(new ExtendableEvent("notificationclick"), { notification, action }));
}"""
PERMISSION = "Object.defineProperty(Notification, 'permission', { get: () => '%s' });"
INSTALLED = """
const real = window.matchMedia.bind(window);
window.matchMedia = (query) => query.includes("standalone") ? { matches: true } : real(query);
"""
# The push service gave the browser another subscription; the browser does not say which one it replaces.
CHANGE = """(given) => {
  const newSubscription = { ...given, options: {}, toJSON: () => given };
  const change = { oldSubscription: null, newSubscription };
  self.dispatchEvent(Object.assign(new ExtendableEvent("pushsubscriptionchange"), change));
}"""
SHOWN = """async () => (await self.registration.getNotifications()).map(
  ({ title, body, tag }) => ({ title, body, tag }))"""
FOCUS = "() => { WindowClient.prototype.focus = async function () { return this; }; }"  # needs a person's click
RECORD = """() => {
  self.shown = [];
  self.registration.getNotifications = async ({ tag } = {}) => self.shown.filter((one) => !tag || one.tag === tag);
  self.registration.showNotification = async (title, options) => {
    self.shown = self.shown.filter((one) => one.tag !== options.tag);
    const close = () => { self.shown = self.shown.filter((one) => one.tag !== options.tag); };
    self.shown.push({ title, ...options, close });
  };
}"""


class Visitor:
    """A page that subscribes at the tests' service, and its service worker."""

    def __init__(self, page: Page, push_service: PushService) -> None:
        self.page, self._ids = page, list[str]()
        page.add_init_script(SUBSCRIBE % json.dumps(push_service.browser("laptop").subscription))
        page.context.grant_permissions(["notifications"])
        self.is_real = page.evaluate("Notification.permission") == "granted"
        if not self.is_real:
            page.add_init_script(PERMISSION % "granted")
        page.reload()

    def turn_on(self, button: str) -> None:
        """Press the button, and record what the service worker shows from now on."""
        with self.page.context.expect_event("serviceworker") as started:
            self.page.get_by_role("button", name=button).click()
        self.worker = started.value
        expect(self.page.get_by_text("On in this browser.")).to_be_visible()
        self.worker.evaluate(FOCUS)
        if not self.is_real:
            self.worker.evaluate(RECORD)
        self._devtools = self.page.context.new_cdp_session(self.page)
        self._devtools.on("ServiceWorker.workerRegistrationUpdated", self._learn)
        self._devtools.send("ServiceWorker.enable")

    def _learn(self, event: Any) -> None:
        self._ids += [row["registrationId"] for row in event["registrations"] if not row["isDeleted"]]

    def receive(self, payload: dict[str, Any]) -> None:
        """Deliver a message to the service worker, as the browser's push service would."""
        wait_until(lambda: self.shown() is not None and self._ids)
        origin = "{0.scheme}://{0.netloc}".format(urlsplit(self.page.url))
        message = {"origin": origin, "registrationId": self._ids[-1], "data": json.dumps(payload)}
        self._devtools.send("ServiceWorker.deliverPushMessage", message)

    def shown(self) -> list[dict[str, Any]]:
        """Return the notifications that are shown."""
        found: list[dict[str, Any]] = self.worker.evaluate(SHOWN)
        return found

    def click(self, action: str = "") -> None:
        """Click the only notification that is shown, or one of its buttons."""
        self.worker.evaluate(CLICK, action)


def send() -> None:
    """Run the loop that sends pushes, in a thread: in this one, Playwright's event loop runs."""

    def run() -> None:
        while loops.send_push() == 0:
            pass
        connections.close_all()

    with ThreadPoolExecutor(1) as threads:
        threads.submit(run).result()


def test_page_says_in_plain_words_why_it_did_not_work(floor, sign_in, push_service: PushService) -> None:
    page = sign_in(make.dispatcher(floor.organization), path="/notifications/choices/")
    visitor = Visitor(page, push_service)
    visitor.turn_on("Turn on for this browser")
    said, test = (
        page.locator("[data-said]"),
        page.get_by_role("button", name="Send a test notification", exact=True),
    )
    page.route("**/push/", lambda route: route.abort())
    test.click()
    expect(said).to_have_text(
        "That didn't work: Dispatch could not be reached. Check the connection and try again."
    )
    page.unroute("**/push/")
    page.route("**/push/", lambda route: route.fulfill(status=500, body="<html>"))
    test.click()
    expect(said).to_have_text("That didn't work: Try again in a moment.")
    page.unroute("**/push/")
    test.click()
    expect(said).to_have_text("Sent. It appears within seconds.")


def test_user_turns_it_on_and_the_test_notification_is_shown(floor, sign_in, push_service: PushService) -> None:
    page = sign_in(make.dispatcher(floor.organization), path="/notifications/choices/")
    visitor = Visitor(page, push_service)
    visitor.turn_on("Turn on for this browser")
    expect(page.locator("[data-here]")).to_be_visible()
    page.get_by_role("button", name="Send a test notification", exact=True).click()
    expect(page.get_by_text("Sent. It appears within seconds.")).to_be_visible()
    send()
    (payload,) = push_service.payloads("laptop")
    visitor.receive(payload)
    wait_until(lambda: [one["title"] for one in visitor.shown()] == ["Test notification"])
    expect(page.locator("#push").get_by_text("Works.")).to_be_visible()
    visitor.receive({**payload, "type": "close"})
    wait_until(lambda: visitor.shown() == [])
    page.get_by_role("button", name="Turn off for this browser").click()
    expect(page.get_by_role("button", name="Turn on for this browser")).to_be_visible()
    assert not PushSubscription.objects.exists()


def test_list_of_browsers_is_read_again_while_an_earlier_answer_is_slow(
    floor, sign_in, push_service: PushService
) -> None:
    page = sign_in(make.dispatcher(floor.organization), path="/notifications/choices/")
    visitor = Visitor(page, push_service)
    held: list[Route] = []
    page.route("**/push/browsers/", lambda route: route.fallback() if held else held.append(route))
    visitor.turn_on("Turn on for this browser")
    while not held:
        page.wait_for_event("request")
    answer = held[0].fetch()
    page.get_by_role("button", name="Send a test notification", exact=True).click()
    expect(page.get_by_text("Sent. It appears within seconds.")).to_be_visible()
    send()
    held[0].fulfill(response=answer)
    expect(page.locator("#push").get_by_text("Works.")).to_be_visible()


def test_click_opens_the_page_in_the_open_tab(floor, sign_in, push_service: PushService) -> None:
    page = sign_in(make.dispatcher(floor.organization), path="/notifications/choices/")
    visitor = Visitor(page, push_service)
    visitor.turn_on("Turn on for this browser")
    actions = [{"action": "acknowledge", "title": "Acknowledge", "url": "/leads/"}]
    alert = {"type": "show", "tag": "dispatch-1", "title": "Job 12", "body": "", "url": "/board/?job=12"}
    visitor.receive({**alert, "actions": actions})
    wait_until(visitor.shown)
    visitor.click()
    page.wait_for_url("**/board/?job=12")
    assert visitor.shown() == []
    visitor.receive({**alert, "actions": actions})
    wait_until(visitor.shown)
    visitor.click("acknowledge")
    page.wait_for_url("**/leads/")
    assert len(page.context.pages) == 1


def test_browser_renews_its_subscription_without_a_session(floor, sign_in, push_service: PushService) -> None:
    page = sign_in(make.dispatcher(floor.organization), path="/notifications/choices/")
    visitor = Visitor(page, push_service)
    visitor.turn_on("Turn on for this browser")
    wait_until(lambda: visitor.worker.evaluate("async () => Boolean(await remembered())"))
    page.context.clear_cookies()
    visitor.worker.evaluate(CHANGE, push_service.browser("renewed").subscription)
    wait_until(lambda: PushSubscription.objects.get().endpoint.endswith("/renewed"))
    wait_until(lambda: visitor.worker.evaluate("async () => (await remembered()).endpoint").endswith("/renewed"))


def test_blocked_notifications_are_explained(floor, sign_in, push_service: PushService) -> None:
    page = sign_in(make.dispatcher(floor.organization), path="/notifications/choices/")
    page.add_init_script(PERMISSION % "denied")
    page.reload()
    expect(page.get_by_text("Notifications are blocked for this site.")).to_be_visible()
    expect(page.get_by_role("button", name="Turn on for this browser")).to_be_hidden()


def test_technician_turns_it_on(floor, sign_in, push_service: PushService) -> None:
    (ann,) = floor.crew("Ann")
    path = urlsplit(signed_links.technician_url(ann)).path
    page = sign_in(make.dispatcher(floor.organization), path=path, width=390)
    visitor = Visitor(page, push_service)
    visitor.turn_on("Turn on notifications")
    page.get_by_role("button", name="Send a test notification").click()
    expect(page.get_by_text("Sent. It appears within seconds.")).to_be_visible()
    assert PushSubscription.objects.get().technician == ann
    send()
    visitor.receive(push_service.payloads("laptop")[0])
    wait_until(lambda: [one["title"] for one in visitor.shown()] == ["Test notification"])


def test_installed_app_without_connection_shows_its_page_and_returns(floor, sign_in) -> None:
    page = sign_in(make.dispatcher(floor.organization), path="/board/")
    page.add_init_script(INSTALLED)
    page.reload()
    page.wait_for_function("() => navigator.serviceWorker.ready.then(() => true)")
    page.context.set_offline(True)
    page.reload()
    expect(page.get_by_role("heading", name="You're offline")).to_be_visible()
    assert "/board/" in page.url
    assert page.evaluate("getComputedStyle(document.querySelector('.card')).borderRadius") != "0px", "it has style"
    page.context.set_offline(False)
    expect(page.locator("header.top")).to_be_visible()
    assert page.evaluate("caches.keys().then((names) => names.length)") == 1
