"""Say whether push notifications can work here, and whether they reach an organization's browsers."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db.models import Count, Q

from dispatch.core.languages import gettext as _
from dispatch.core.languages import mark
from notifications.metrics import FAILING_AFTER
from notifications.models import PushSubscription
from notifications.services import push_keys, push_subscriptions

# Names of hosts that browsers trust without https.
LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})
NOT_CONFIGURED, UNUSED, WORKING, FAILING = "not configured", "unused", "working", "failing"
NO_KEY = mark("Push notifications can't be sent: this installation's key can't be read.")
NO_HTTPS = mark("Browsers offer no push notifications, because the site is not on https.")


@dataclass(frozen=True)
class PushState:
    """Whether push works for an organization. `problem`: why it can't, as a sentence, or empty.

    `browsers`: how many get notifications; `failing`: how many of them
    failed twice in a row.
    """

    problem: str = ""
    browsers: int = 0
    tried: int = 0
    failing: int = 0

    @property
    def name(self) -> str:
        """Return not configured, unused, working or failing. It fails if every browser that was tried does."""
        if self.problem:
            return NOT_CONFIGURED
        if not self.browsers:
            return UNUSED
        return FAILING if self.tried and self.failing == self.tried else WORKING

    @property
    def words(self) -> str:
        """Describe the state in the active language."""
        if self.problem:
            return _(self.problem)
        if not self.browsers:
            return _("Push notifications are configured. Nobody has turned them on yet.")
        if self.name == FAILING:
            return _("Push notifications fail: no browser gets them.")
        if self.failing:
            return _("Push notifications fail in {failing} of {browsers} browsers.").format(
                failing=self.failing, browsers=self.browsers
            )
        return _("Push notifications work.")


def read_state(organization_id: int) -> PushState:
    """Return the state of the organization's push notifications."""
    problem = find_problem()
    counts = push_subscriptions.valid_subscriptions().filter(organization=organization_id)
    found = counts.aggregate(
        browsers=Count("pk"), tried=Count("pk", filter=Q(tried_at__isnull=False)),
        failing=Count("pk", filter=Q(failures__gte=FAILING_AFTER)),
    )  # fmt: skip
    return PushState(problem, **found)


def find_fault(organization_id: int) -> str:
    """Return why push does not reach an organization that uses it, or an empty string, for the health bar."""
    if not PushSubscription.objects.of(organization_id).exists():
        return ""
    state = read_state(organization_id)
    return state.words if state.name in (NOT_CONFIGURED, FAILING) else ""


def find_problem() -> str:
    """Return why no browser can get push notifications here, or an empty string."""
    address = urlsplit(settings.PUBLIC_BASE_URL)
    if address.scheme != "https" and address.hostname not in LOCAL:
        return NO_HTTPS
    try:
        push_keys.load_keys()
    except (push_keys.InvalidPushKey, ImproperlyConfigured):
        return NO_KEY
    return ""
