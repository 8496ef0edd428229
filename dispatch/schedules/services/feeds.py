"""Create and revoke the signed links of calendar feeds, and find the feed of a link."""

from __future__ import annotations

from django.conf import settings
from django.core.signing import BadSignature, Signer
from django.db import transaction
from django.urls import reverse

from dispatch.core import events
from dispatch.core.events import Actor
from dispatch.core.ids import read_id
from dispatch.jobs.signed_links import InvalidLink
from dispatch.schedules.models import ScheduleFeed


def create_feed(organization_id: int, name: str, *, actor: Actor) -> ScheduleFeed:
    """Create a feed, whose link is valid until the feed is revoked."""
    with transaction.atomic():
        feed = ScheduleFeed.objects.create(organization_id=organization_id, name=name)
        events.append(organization_id, "schedulefeed.created", feed.pk, actor=actor, name=name)
    return feed


def revoke_feed(feed: ScheduleFeed, *, actor: Actor) -> None:
    """Delete the feed. Its link is no longer valid."""
    with transaction.atomic():
        events.append(feed.organization_id, "schedulefeed.revoked", feed.pk, actor=actor, name=feed.name)
        ScheduleFeed.objects.filter(pk=feed.pk).delete()


def feed_url(feed: ScheduleFeed) -> str:
    """Return the link, which is the only credential of the feed."""
    return f"{settings.PUBLIC_BASE_URL}{reverse('schedule_feed', args=[_signer().sign(str(feed.pk))])}"


def feed_of(token: str) -> ScheduleFeed:
    """Return the feed of a link. Raises InvalidLink."""
    try:
        pk = read_id(_signer().unsign(token))
    except BadSignature:
        raise InvalidLink from None
    feeds = ScheduleFeed.objects.select_related("organization").filter(organization__is_active=True)
    feed = None if pk is None else feeds.filter(pk=pk).first()
    if feed is None:
        raise InvalidLink
    return feed


def _signer() -> Signer:
    return Signer(salt="dispatch.schedules.feed", sep=".")
