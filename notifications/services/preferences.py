"""Who wants to hear of what, by which channel."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from django.db import transaction

from accounts.models import User
from dispatch.core import events
from dispatch.core.events import Actor
from notifications import rules
from notifications.models import Preference, Route


@dataclass(frozen=True)
class Wants:
    """`shown`: as it happens (a critical alert always is); the rest are the channels."""

    shown: bool
    email: bool
    sms: bool
    voice: bool


def default_of(kind: str, *, is_alert: bool | None = None) -> Wants:
    """What counts for who chose nothing: the table of rules. `is_alert`: whether it is one here, for an
    organization may have made it one."""
    rule = rules.BY_KIND[kind]
    is_alert = rule.level == rules.CRITICAL if is_alert is None else is_alert
    return Wants(shown=True, email=rule.email, sms=is_alert, voice=is_alert)


def wants_of(
    organization_id: int, users: Collection[int], kind: str, *, is_alert: bool | None = None
) -> dict[int, Wants]:
    """What each of these users wants of that kind; see `default_of`."""
    usual = default_of(kind, is_alert=is_alert)
    chosen = Preference.objects.of(organization_id).filter(user_id__in=users, kind=kind)
    own = {row.user_id: Wants(row.shown, row.email, row.sms, row.voice) for row in chosen}
    return {user: own.get(user, usual) for user in users}


@dataclass(frozen=True)
class Choice:
    """One kind of event as it is told in an organization, and what one user wants of it. `is_own`: chosen, not by
    default. `is_told`: the organization has it told at all."""

    rule: rules.Rule
    level: str
    to: str
    is_told: bool
    wants: Wants
    is_own: bool

    @property
    def is_alert(self) -> bool:
        return self.level == rules.CRITICAL


def choices_of(user: User, organization_id: int) -> list[Choice]:
    """Every kind in the order of the table."""
    routes = {row.kind: row for row in Route.objects.of(organization_id)}
    own = {row.kind: row for row in Preference.objects.of(organization_id).filter(user=user)}
    found = []
    for rule in rules.TABLE:
        route = routes.get(rule.kind) or Route()
        level = route.level or rule.level
        row = own.get(rule.kind)
        wants = (
            Wants(row.shown, row.email, row.sms, row.voice)
            if row
            else default_of(rule.kind, is_alert=level == rules.CRITICAL)
        )
        found.append(Choice(rule, level, route.to or rule.to, route.is_on, wants, row is not None))
    return found


def save_preference(user: User, organization_id: int, kind: str, wants: Wants, *, actor: Actor) -> Preference:
    """Writes what the user chose. Raises KeyError for a kind that is not in the table."""
    if rules.BY_KIND[kind].level == rules.CRITICAL:
        wants = Wants(True, wants.email, wants.sms, wants.voice)
    with transaction.atomic():
        row, _ = Preference.objects.update_or_create(
            organization_id=organization_id,
            user=user,
            kind=kind,
            defaults={"shown": wants.shown, "email": wants.email, "sms": wants.sms, "voice": wants.voice},
        )
        events.append(
            organization_id, "preference.changed", row.pk, actor=actor, kind_of_event=kind, user_id=user.pk
        )
    return row


def forget_preferences(user: User, organization_id: int, *, actor: Actor) -> int:
    """What the user chose there counts no longer, the defaults do; how many kinds that were."""
    with transaction.atomic():
        own = Preference.objects.of(organization_id).filter(user=user).select_for_update()
        for row in own:
            events.append(
                organization_id,
                "preference.forgotten",
                row.pk,
                actor=actor,
                kind_of_event=row.kind,
                user_id=user.pk,
            )
        count, _ = Preference.objects.filter(pk__in=[row.pk for row in own]).delete()
    return count
