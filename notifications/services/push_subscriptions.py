"""Add, test and remove the browsers of users and technicians that get push notifications."""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

from cryptography.hazmat.primitives.asymmetric import ec
from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import F, Q, QuerySet

from accounts.auth import throttling
from accounts.models import Organization, User
from dispatch.core import clock, events
from dispatch.core.events import Actor
from dispatch.core.http.ssrf import check_target_url
from dispatch.core.languages import gettext as _
from dispatch.core.models import Event
from dispatch.technicians.models import Technician
from notifications.channels.failure_reasons import Failure
from notifications.models import PushMessage, PushSubscription
from notifications.services import push_keys, push_messages, push_results
from notifications.services.push_keys import from_base64url

Owner = User | Technician

MAX_PER_PERSON = 10
MAX_ENDPOINT, AUTH_BYTES, POINT_BYTES = 1000, 16, 65
TEST_RATE = throttling.Rate(10, 600)
# After this many failed attempts in a row, a browser's push service gets no message for a while.
MAX_FAILURES, PAUSE = 3, timedelta(seconds=60)
# In this order: Edge and Opera name Chrome too, and Chrome names Safari.
_BROWSERS = (("Edg", "Edge"), ("OPR/", "Opera"), ("SamsungBrowser", "Samsung Internet"), ("Firefox", "Firefox"),
             ("FxiOS", "Firefox"), ("CriOS", "Chrome"), ("Chrome", "Chrome"), ("Safari", "Safari"))  # fmt: skip
_SYSTEMS = (("iPhone", "iPhone"), ("iPad", "iPad"), ("Android", "Android"), ("Windows", "Windows"),
            ("Mac OS X", "Mac"), ("CrOS", "ChromeOS"), ("Linux", "Linux"))  # fmt: skip


# Ending all sessions of a user ends push in the browsers of that time; `keep_by_public_id` keeps one.
_IS_VALID = Q(user__sessions_ended_at=None) | Q(created_at__gt=F("user__sessions_ended_at"))


class TestRefused(Exception):
    """No test message was sent. The text says why, as a sentence for the user."""

    __test__ = False


@dataclass(frozen=True)
class SubscriptionState:
    """A browser as the settings show it. `is_testing`: a test message is on its way.

    `error`: of the latest message.
    """

    subscription: PushSubscription
    is_testing: bool
    error: str


# --- Reading -----------------------------------------------------------------------------------------------------
def subscriptions_of(organization_id: int, owner: Owner) -> QuerySet[PushSubscription]:
    """Return the owner's browsers in the organization, without their secrets."""
    rows = (
        PushSubscription.objects.of(organization_id)
        .filter(_IS_VALID, **_owned_by(owner))
        .defer("endpoint", "keys")
    )
    own: QuerySet[PushSubscription] = rows.order_by("pk")
    return own


def valid_subscriptions() -> QuerySet[PushSubscription]:
    """Return the browsers of everyone whose user has not ended all sessions since."""
    rows: QuerySet[PushSubscription] = PushSubscription.objects.filter(_IS_VALID)
    return rows


def states_of(organization_id: int, owner: Owner) -> list[SubscriptionState]:
    """Return the owner's browsers in the organization, for their settings."""
    rows = subscriptions_of(organization_id, owner)
    tests = PushMessage.objects.filter(subscription__in=rows, purpose=PushMessage.Purpose.TEST)
    latest_tests = tests.order_by("subscription_id", "-pk").distinct("subscription_id")
    # Before the rows are read: a row read later has the results of these tests.
    latest = {test.subscription_id: test for test in latest_tests}
    return [_state_of(row, latest.get(row.pk)) for row in rows]


def _state_of(row: PushSubscription, test: PushMessage | None) -> SubscriptionState:
    is_testing = test is not None and test.status in push_messages.OPEN
    error = row.error
    # A test that was not sent in time is no failure of the browser.
    if test is not None and test.ended_at and (row.tried_at is None or row.tried_at < test.ended_at):
        error = test.error
    return SubscriptionState(row, is_testing, error)


def subscribed_users(organization_id: int, users: Collection[int]) -> set[int]:
    """Return which of these users have a browser that gets push notifications."""
    rows = PushSubscription.objects.of(organization_id).filter(_IS_VALID, user_id__in=users)
    return set(rows.values_list("user_id", flat=True))


def hash_endpoint(endpoint: str) -> str:
    """Return the digest by which a browser's endpoint is found."""
    return hashlib.sha256(endpoint.encode()).hexdigest()


def describe_browser(agent: str) -> str:
    """Return the browser and its system, such as "Chrome on Windows"."""
    browser = next((name for mark, name in _BROWSERS if mark in agent), "")
    system = next((name for mark, name in _SYSTEMS if mark in agent), "")
    return f"{browser or 'Browser'} on {system}" if system else browser or "Browser"


# --- Changing ----------------------------------------------------------------------------------------------------
def subscribe(
    organization: Organization, owner: Owner, entered: Mapping[str, Any], *, agent: str, actor: Actor
) -> PushSubscription:
    """Add the browser that made this subscription, or return it if the owner has it already.

    `entered`: PushSubscription.toJSON() of the browser, which anybody can forge. A colleague's subscription of the
    same browser ends. Raises ValidationError.
    """
    endpoint, keys = read_entered(entered)
    server_key, digest = push_keys.load_keys().public, hash_endpoint(endpoint)
    with transaction.atomic():
        Organization.objects.select_for_update(no_key=True).get(pk=organization.pk)  # two adds at once
        if isinstance(owner, Technician):
            _require_valid_link(owner)
        rows = PushSubscription.objects.of(organization.pk)
        same = rows.filter(endpoint_hash=digest).defer("endpoint", "keys")
        kind = "user" if isinstance(owner, User) else "technician"
        for other in same.filter(**{f"{kind}__isnull": False}).exclude(**_owned_by(owner)):
            remove(other, actor=actor)
        row: PushSubscription | None = same.filter(**_owned_by(owner)).first()
        if row is not None:
            row.keys, row.server_key, row.created_at = keys, server_key, clock.now()
            row.failures, row.error, row.paused_until = 0, "", None
            row.save(
                update_fields=["keys", "server_key", "created_at", "failures", "error", "paused_until"],
            )
            return row
        ended = rows.filter(**_owned_by(owner)).exclude(_IS_VALID).defer("endpoint", "keys")
        for invalid in ended:  # the settings do not list them
            remove(invalid, actor=actor)
        if rows.filter(**_owned_by(owner)).count() >= MAX_PER_PERSON:
            raise ValidationError(
                _("At most {most} browsers are possible. Remove one first.").format(most=MAX_PER_PERSON)
            )
        row = PushSubscription.objects.create(
            organization=organization, **_owned_by(owner), name=describe_browser(agent)[:60],
            host=str(urlsplit(endpoint).hostname)[:120], endpoint=endpoint, endpoint_hash=digest, keys=keys,
            server_key=server_key,
        )  # fmt: skip
        append_event(row, "added", actor)
    return row


def remove(row: PushSubscription, *, actor: Actor) -> None:
    """Remove the browser with its secrets and messages."""
    with transaction.atomic():
        if PushSubscription.objects.filter(pk=row.pk).delete()[0]:
            append_event(row, "removed", actor)


def remove_of_member(organization_id: int, user_id: int, actor: Actor) -> None:
    """Remove the browsers of a member who leaves. Should they return, they turn push on again."""
    rows = PushSubscription.objects.of(organization_id).filter(user_id=user_id).defer("endpoint", "keys")
    for row in rows.order_by("pk"):
        remove(row, actor=actor)


def remove_of_technician(technician_id: int, actor: Actor) -> None:
    """Remove the technician's browsers, because the links to their page are revoked.

    A lost phone would go on getting messages, each with a new link. Call it with the technician locked.
    """
    rows = PushSubscription.objects.filter(technician_id=technician_id).defer("endpoint", "keys")
    for row in rows.order_by("pk"):
        remove(row, actor=actor)


def remove_by_public_id(user: User, public_id: str, *, actor: Actor) -> None:
    """Remove the browser from all of the user's organizations, when they sign out in it."""
    for row in _rows_of_browser(PushSubscription.objects.filter(user=user), public_id).defer("endpoint", "keys"):
        remove(row, actor=actor)


def keep_by_public_id(user: User, public_id: str, *, former: datetime | None) -> None:
    """Keep the browser in all of the user's organizations, although their other sessions have just ended.

    `former`: when all sessions had ended before that. A browser that ended then is not kept.
    """
    assert user.sessions_ended_at is not None
    rows = PushSubscription.objects.filter(user=user)
    if former is not None:
        rows = rows.filter(created_at__gt=former)
    later = user.sessions_ended_at + timedelta(microseconds=1)  # see _IS_VALID
    _rows_of_browser(rows, public_id).update(created_at=later)


def _rows_of_browser(rows: QuerySet[PushSubscription], public_id: str) -> QuerySet[PushSubscription]:
    """Return those of the rows that are of the browser which knows itself by this id."""
    try:
        given = uuid.UUID(public_id)
    except ValueError:
        return rows.none()
    return rows.filter(endpoint_hash__in=rows.filter(public_id=given).values("endpoint_hash"))


def expire(subscription_id: int, reason: str) -> None:
    """Remove a browser that no longer takes notifications. Its user is notified; a technician sees it."""
    push_results.fail_open_messages(subscription_id, reason)
    with transaction.atomic():
        PushMessage.objects.filter(subscription=subscription_id).delete()  # locks are taken in this order
        rows = PushSubscription.objects.select_for_update(no_key=True, of=("self",)).defer("endpoint", "keys")
        row = rows.filter(pk=subscription_id).first()
        if row is None:
            return
        events.append(
            row.organization_id, "push_subscription.expired", row.pk, name=row.name, reason=reason[:200],
            owner_id=row.user_id, technician_id=row.technician_id,
        )  # fmt: skip
        row.delete()


def send_test(row: PushSubscription, *, actor: Actor) -> None:
    """Send a test notification to the browser; the loop does, within seconds. Raises TestRefused."""
    key = f"push-test:{row.user_id or 0}:{row.technician_id or 0}"
    (taken,) = throttling.take_tokens((key, TEST_RATE))
    if taken.wait_ms:
        minutes = -(-taken.wait_ms // 60_000)
        raise TestRefused(_("Too many test notifications. Try again in {minutes} min.").format(minutes=minutes))
    with transaction.atomic():
        if not PushSubscription.objects.filter(pk=row.pk).update(paused_until=None):
            raise TestRefused(_("This browser was removed."))
        event = append_event(row, "tested", actor)
        push_messages.write_test(row, event.pk)


def record_success(subscription_id: int) -> None:
    """Record that the push service took a message."""
    now = clock.now()
    PushSubscription.objects.filter(pk=subscription_id).update(
        failures=0, error="", tried_at=now, succeeded_at=now, paused_until=None
    )


def record_failure(subscription_id: int, failure: Failure) -> None:
    """Record why a message was not taken. None is sent while the service wants a pause, or keeps failing."""
    now = clock.now()
    with transaction.atomic():
        rows = PushSubscription.objects.select_for_update(no_key=True).defer("endpoint", "keys")
        row = rows.filter(pk=subscription_id).first()
        if row is None:
            return
        row.failures, row.error, row.tried_at = row.failures + 1, failure.reason[:255], now
        row.failure, row.failed_at = row.error, now
        if failure.wait_s:
            row.paused_until = now + timedelta(seconds=failure.wait_s)
        elif row.failures >= MAX_FAILURES and not failure.is_permanent:
            row.paused_until = now + PAUSE
        row.save(update_fields=["failures", "error", "tried_at", "failure", "failed_at", "paused_until"])


def _require_valid_link(technician: Technician) -> None:
    """Lock the technician. Raise ValidationError if the link by which they were found was revoked since."""
    rows = Technician.objects.select_for_update(no_key=True).filter(pk=technician.pk, is_active=True)
    if rows.filter(link_version=technician.link_version).first() is None:
        raise ValidationError(_("This link is no longer valid."))


def _owned_by(owner: Owner) -> dict[str, Any]:
    if isinstance(owner, User):
        return {"user": owner, "technician": None}
    return {"user": None, "technician": owner}


def read_entered(entered: Mapping[str, Any]) -> tuple[str, Any]:
    """Return the endpoint and the keys of a subscription that a browser names. Raises ValidationError."""
    endpoint, keys = entered.get("endpoint"), entered.get("keys")
    if not isinstance(endpoint, str) or not isinstance(keys, Mapping) or len(endpoint) > MAX_ENDPOINT:
        raise ValidationError(_("This is not a subscription of a browser."))
    if not re.fullmatch(r"[\x21-\x7e]+", endpoint):
        raise ValidationError(_("The endpoint must be a URL."))
    check_target_url(endpoint)
    if urlsplit(endpoint).scheme != "https":
        raise ValidationError(_("The endpoint must be an https URL."))
    point, secret = str(keys.get("p256dh", "")), str(keys.get("auth", ""))
    try:
        is_point = len(from_base64url(point)) == POINT_BYTES
        ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), from_base64url(point))
        is_secret = len(from_base64url(secret)) == AUTH_BYTES
    except ValueError:
        raise ValidationError(_("The keys of the subscription are not valid.")) from None
    if not (is_point and is_secret):
        raise ValidationError(_("The keys of the subscription are not valid."))
    return endpoint, {"p256dh": point, "auth": secret}


def append_event(row: PushSubscription, verb: str, actor: Actor) -> Event:
    """Append an event about the browser, without its secrets."""
    return events.append(
        row.organization_id, f"push_subscription.{verb}", row.pk, actor=actor, name=row.name, host=row.host,
        user_id=row.user_id, technician_id=row.technician_id,
    )  # fmt: skip
