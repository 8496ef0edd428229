"""Find which members of an organization alerts can text and call, and which they can't."""

from __future__ import annotations

from dataclasses import dataclass

from accounts.alert_phones import USABLE, with_alert_phone
from accounts.models import Membership
from dispatch.core.languages import gettext, mark

MAX_NAMED = 10


@dataclass(frozen=True)
class AlertReach:
    """The names of active members in the order of alerts: those with a phone that alerts use, and the others."""

    by_phone: tuple[str, ...]
    not_by_phone: tuple[str, ...]

    def describe(self) -> str:
        """Return sentences for the people who choose whom alerts reach."""
        if not self.by_phone:
            return f"{gettext(NOBODY)} {gettext(HOW)}"
        described = gettext("Alerts reach {names} by text and call.").format(names=_list_names(self.by_phone))
        if self.not_by_phone:
            others = _list_names(self.not_by_phone)
            words = gettext("Until they confirm a phone, {names} get no alerts by text or call.")
            described += f" {words.format(names=others)}"
        return described


NOBODY = mark("Alerts reach nobody by text or call: no member has a confirmed phone.")
HOW = mark("Each member confirms their own phone in Notification settings.")


def load_reach(organization_id: int) -> AlertReach:
    """Return whom alerts of the organization can reach, and how."""
    members = Membership.objects.of(organization_id).filter(is_active=True, user__is_active=True)
    rows = list(with_alert_phone(members).select_related("user").order_by("alert_order", "pk"))
    return AlertReach(
        tuple(row.person for row in rows if row.alert_phone in USABLE),
        tuple(row.person for row in rows if row.alert_phone not in USABLE),
    )


def reaches_somebody(organization_id: int) -> bool:
    """Return whether alerts can text or call at least one member."""
    members = Membership.objects.of(organization_id).filter(is_active=True, user__is_active=True)
    return bool(with_alert_phone(members).filter(alert_phone__in=USABLE).exists())


def _list_names(names: tuple[str, ...]) -> str:
    more = len(names) - MAX_NAMED
    shown = ", ".join(names[:MAX_NAMED])
    return gettext("{first} and {more:,} more").format(first=shown, more=more) if more > 0 else shown
