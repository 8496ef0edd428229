"""Create, open and revoke portal links, and do what a receiver may do with its own endpoints.

A link carries a signed random code and is exchanged once for a session's key. Only digests of both are stored.
Everything a receiver sees or changes goes through `endpoints_of` and `messages_of`, which know the link's scope.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

from django.core.exceptions import ValidationError
from django.core.signing import BadSignature, Signer
from django.db import transaction
from django.db.models import QuerySet

from accounts.models import Organization
from dispatch.core import clock, events
from dispatch.core.events import Actor
from dispatch.core.languages import gettext as _
from dispatch.outbox import catalog
from dispatch.outbox.models import Endpoint, Message, PortalLink
from dispatch.outbox.rules.ordering import passes_filter
from dispatch.outbox.services import actions, endpoints, target_health
from dispatch.outbox.services.actions import Action, ActionResult
from dispatch.outbox.services.creation_times import created_since

LINK_S, MAX_LINK_S = 24 * 3600, 7 * 24 * 3600
SESSION_S, MAX_SESSION_S = 12 * 3600, 30 * 24 * 3600
MAX_REPLAYED = 10_000
STATES = ("new", "open", "used", "expired", "revoked")
# The reason of a pause that a receiver made, and that a receiver may end. Staff's pauses stay.
PAUSED_HERE = "Paused by the receiver in its portal."


class InvalidPortalLink(Exception):
    """The link or the session is unknown, expired, used or revoked."""


def check_scope(organization_id: int, endpoint: Endpoint | None, receiver: str) -> None:
    """Raise ValidationError by field unless the link is for one endpoint, or for a label that endpoints have."""
    if (endpoint is None) == (not receiver):
        raise ValidationError({"endpoint": _("Choose an endpoint, or enter a receiver.")})
    if receiver and not Endpoint.objects.of(organization_id).filter(receiver=receiver).exists():
        raise ValidationError({"receiver": _("No endpoint has this receiver.")})


def create_link(
    organization: Organization,
    *,
    actor: Actor,
    endpoint: Endpoint | None = None,
    receiver: str = "",
    label: str = "",
    event_types: Iterable[str] | None = None,
    is_read_only: bool = False,
    link_s: int = LINK_S,
    session_s: int = SESSION_S,
) -> tuple[PortalLink, str]:
    """Create a link; return it with its code, which is not shown again.

    It must be opened within `link_s` seconds; the session lasts `session_s`. `event_types` are what the receiver
    may subscribe to (None: what its endpoints are subscribed to now).
    """
    now, code = clock.now(), secrets.token_urlsafe(24)
    with transaction.atomic():
        link = PortalLink(
            organization=organization, endpoint=endpoint, receiver=receiver, label=label,
            uid=secrets.token_hex(12), is_read_only=is_read_only,
            code_digest=_digest(code), expires_at=now + timedelta(seconds=link_s),
            session_s=session_s, created_by=actor.label[:120],
        )  # fmt: skip
        if event_types is None:
            event_types = {name for row in endpoints_of(link) for name in row.event_types}
        link.event_types = sorted(event_types)
        link.save()
        _append_event(link, "created", actor, endpoint_id=endpoint.pk if endpoint else None, receiver=receiver)
    return link, _signer().sign(code)


def find_link(uid: str, code: str) -> PortalLink:
    """Return the link that can still be opened with this code. Raises InvalidPortalLink."""
    try:
        plain = _signer().unsign(code)
    except BadSignature:
        raise InvalidPortalLink from None
    link = _links().filter(uid=uid, opened_at=None, expires_at__gt=clock.now()).first()
    if link is None or not hmac.compare_digest(link.code_digest, _digest(plain)):
        raise InvalidPortalLink
    return link


def open_link(uid: str, code: str) -> tuple[PortalLink, str]:
    """Exchange the link for a session; return it with the session's key. Raises InvalidPortalLink.

    Of several exchanges at once, one succeeds.
    """
    link, now, key = find_link(uid, code), clock.now(), secrets.token_urlsafe(32)
    until = now + timedelta(seconds=link.session_s)
    with transaction.atomic():
        opened = PortalLink.objects.filter(pk=link.pk, opened_at=None, revoked_at=None).update(
            opened_at=now, session_until=until, session_digest=_digest(key)
        )
        if not opened:
            raise InvalidPortalLink
        _append_event(link, "opened", actor_of(link))
    link.opened_at, link.session_until = now, until
    return link, key


def session_of(uid: str, key: str) -> PortalLink:
    """Return the link of a session. Raises InvalidPortalLink."""
    link = _links().filter(uid=uid, session_until__gt=clock.now()).first()
    if link is None or not key or not hmac.compare_digest(link.session_digest, _digest(key)):
        raise InvalidPortalLink
    return link


def close_session(link: PortalLink) -> None:
    """End the session of a link, when its user signs out."""
    PortalLink.objects.filter(pk=link.pk).update(session_until=clock.now(), session_digest="")


def revoke_link(link_id: int, *, actor: Actor) -> bool:
    """Revoke a link and its session; return False if it was revoked already."""
    with transaction.atomic():
        link = PortalLink.objects.select_for_update(no_key=True).get(pk=link_id)
        if link.revoked_at is not None:
            return False
        link.revoked_at, link.session_digest = clock.now(), ""
        link.save(update_fields=["revoked_at", "session_digest"])
        _append_event(link, "revoked", actor)
    return True


def actor_of(link: PortalLink) -> Actor:
    """Return the receiver as an actor in the event log."""
    return Actor("receiver", link.pk, f"Receiver: {link.label or link.receiver or link.endpoint}"[:120])


# --- What the link opens --------------------------------------------------------------------------------------
def endpoints_of(link: PortalLink) -> QuerySet[Endpoint]:
    """Return the endpoints of the link."""
    own = Endpoint.objects.of(link.organization_id)
    return own.filter(pk=link.endpoint_id) if link.endpoint_id else own.filter(receiver=link.receiver)


def messages_of(link: PortalLink, endpoint: Endpoint) -> QuerySet[Message]:
    """Return the messages of one of the link's endpoints."""
    return Message.objects.of(link.organization_id).filter(endpoint=endpoint, endpoint__in=endpoints_of(link))


def state_of(link: PortalLink) -> str:
    """Return one of STATES: not opened yet, in use, session over, not opened in time, or revoked."""
    now = clock.now()
    if link.revoked_at:
        return "revoked"
    if link.opened_at is None:
        return "new" if link.expires_at > now else "expired"
    return "open" if link.session_digest and link.session_until and link.session_until > now else "used"


def subscription_choices(link: PortalLink, endpoint: Endpoint) -> list[tuple[str, str, bool]]:
    """Return what the receiver may subscribe to: (type or pattern, description, whether it is chosen)."""
    allowed = link.event_types
    found = {pattern: _("All of these events") for pattern in allowed if pattern.endswith("*")}
    for entry in catalog.catalog_of(link.organization_id):
        if passes_filter(allowed, entry.name):
            found[entry.name] = entry.shown_description
    for name in allowed:
        found.setdefault(name, "")
    return [(name, words, name in endpoint.event_types) for name, words in sorted(found.items())]


def catalog_for(link: PortalLink) -> list[catalog.CatalogEntry]:
    """Return the catalog's entries that the receiver may subscribe to."""
    entries = catalog.catalog_of(link.organization_id)
    return [entry for entry in entries if passes_filter(link.event_types, entry.name)]


# --- What the receiver does -----------------------------------------------------------------------------------
def save_subscriptions(link: PortalLink, endpoint: Endpoint, chosen: Iterable[str]) -> Endpoint:
    """Subscribe to the chosen types, of those allowed; subscriptions that the link does not allow stay."""
    allowed = {name for name, _, _ in subscription_choices(link, endpoint)}
    kept = [name for name in endpoint.event_types if name not in allowed]
    names = [*kept, *sorted(allowed & set(chosen))]
    return endpoints.change_endpoint(endpoint.pk, {"event_types": names}, actor=actor_of(link))


def pause(link: PortalLink, endpoint: Endpoint) -> bool:
    """Pause the endpoint; return False if it was paused already."""
    return target_health.pause_endpoint(endpoint.pk, PAUSED_HERE, actor=actor_of(link))


def can_resume(endpoint: Endpoint) -> bool:
    """Return whether a receiver paused the endpoint, so that it may resume it."""
    return endpoint.is_paused and endpoint.paused_reason == PAUSED_HERE


def resume(link: PortalLink, endpoint: Endpoint) -> bool:
    """Resume the endpoint if a receiver paused it; return whether it did."""
    return can_resume(endpoint) and target_health.resume_endpoint(endpoint.pk, actor=actor_of(link))


def send_again(link: PortalLink, message: Message) -> bool:
    """Retry a message in ERROR, or replay one that has ended; return whether it is sent again."""
    action = Action.RETRY if message.status in Action.RETRY.before else Action.REPLAY
    return bool(actions.act_on_messages(action, [message.pk], actor=actor_of(link)).changed)


def send_many_again(
    link: PortalLink, endpoint: Endpoint, since: datetime, *, only_failed: bool, after_id: int = 0
) -> tuple[ActionResult, int | None]:
    """Send again what was created since a moment, oldest first; return the result, and where the rest begins.

    `only_failed`: only messages in ERROR. Otherwise those too, and all that have ended. Pass the returned id as
    `after_id` to continue: what was sent again and delivered meanwhile would otherwise be found again. None: no
    rest.
    """
    own = created_since(messages_of(link, endpoint), link.organization_id, since).filter(pk__gt=after_id)
    wanted = [Action.RETRY] if only_failed else [Action.RETRY, Action.REPLAY]
    statuses = [status for action in wanted for status in action.before]
    fitting = own.filter(status__in=statuses).order_by("id").values_list("pk", flat=True)
    ids = list(fitting[: MAX_REPLAYED + 1])
    has_more = len(ids) > MAX_REPLAYED
    ids = ids[:MAX_REPLAYED]
    if only_failed:
        result = actions.act_on_messages(Action.RETRY, ids, actor=actor_of(link))
    else:
        result = actions.send_again(ids, actor=actor_of(link))
    return result, ids[-1] if has_more else None


def shown_secrets(endpoint: Endpoint) -> list[Mapping[str, Any]]:
    """Return the secrets that sign, newest first: their last characters, since when, and until when."""
    now = clock.now()
    current = {"end": _end(str(endpoint.secret)), "since": endpoint.secret_since or endpoint.created_at}
    former = [
        {"end": _end(secret), "since": since, "until": until}
        for secret, until, since in endpoint.former_secrets_at(now)
    ]
    return [{**current, "until": None, "is_current": True}, *former]


def _end(secret: str) -> str:
    return f"whsec_…{secret[-4:]}"


def _links() -> QuerySet[PortalLink]:
    links = PortalLink.objects.select_related("organization", "endpoint").defer(
        *(f"endpoint__{name}" for name in Endpoint.CREDENTIALS)
    )
    return links.filter(revoked_at=None, organization__is_active=True)


def _signer() -> Signer:
    return Signer(salt="dispatch.outbox.portal", sep=".")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _append_event(link: PortalLink, verb: str, actor: Actor, **data: Any) -> None:
    events.append(link.organization_id, f"portal_link.{verb}", link.pk, actor=actor, label=link.label, **data)
