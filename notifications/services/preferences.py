"""Read and write which users want which kinds of events by which channel."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass, replace

from django.conf import settings
from django.db import transaction

from accounts.models import User
from dispatch.capacity.models import DispatchPool
from dispatch.core import events
from dispatch.core.events import Actor
from notifications import rules
from notifications.escalation_rules import Plan, Step
from notifications.models import EscalationPolicy, EscalationStep, Preference, Route


@dataclass(frozen=True)
class Wants:
    """A user's wishes for one kind of event: `shown` as it happens (a critical alert always is), and channels."""

    shown: bool
    email: bool
    sms: bool
    voice: bool
    chat: bool = False
    push: bool = False


def default_of(kind: str, *, is_alert: bool | None = None) -> Wants:
    """Return the default of the rules for that kind.

    `is_alert`: whether the kind is an alert in this organization, which may have changed its level. Only alerts
    call.
    """
    rule = rules.BY_KIND[kind]
    is_alert = rule.level == rules.CRITICAL if is_alert is None else is_alert
    return Wants(shown=True, email=rule.email, sms=is_alert, voice=True, chat=is_alert, push=is_alert)


def wants_of(
    organization_id: int, users: Collection[int], kind: str, *, is_alert: bool | None = None
) -> dict[int, Wants]:
    """Return the wishes of each of these users for that kind. `is_alert` as in `default_of`."""
    usual = default_of(kind, is_alert=is_alert)
    chosen = Preference.objects.of(organization_id).filter(user_id__in=users, kind=kind)
    own = {row.user_id: _wants_of_row(row, usual) for row in chosen}
    return {user: own.get(user, usual) for user in users}


def _wants_of_row(row: Preference, usual: Wants) -> Wants:
    """Return the user's choice. A channel that the user has not chosen has its default.

    An organization may turn a kind into an alert after the choice. A row without chat and push then has a choice
    of email or screen only, and texts have their default, too: `sms` cannot be empty. Rows of alerts by the rules
    have no chat and push if they are of releases without these channels.
    """
    chat = usual.chat if row.chat is None else row.chat
    push = usual.push if row.push is None else row.push
    is_open = row.chat is None and row.push is None and row.voice
    is_usual_text = is_open and rules.BY_KIND[row.kind].level != rules.CRITICAL
    return Wants(row.shown, row.email, row.sms or (is_usual_text and usual.sms), row.voice, chat, push)


@dataclass(frozen=True)
class Choice:
    """One kind of event in an organization, and one user's wishes for it.

    `is_own`: chosen by the user, not the default. `is_enabled`: the organization has this kind turned on.
    """

    rule: rules.Rule
    level: str
    to: str
    is_enabled: bool
    wants: Wants
    is_own: bool

    @property
    def is_alert(self) -> bool:
        return self.level == rules.CRITICAL


def choices_of(user: User, organization_id: int) -> list[Choice]:
    """Return the user's choices for every kind, in the order of the table."""
    routes = {row.kind: row for row in Route.objects.of(organization_id)}
    own = {row.kind: row for row in Preference.objects.of(organization_id).filter(user=user)}
    choices = []
    for rule in rules.TABLE:
        route = routes.get(rule.kind) or Route()
        level = route.level or rule.level
        row = own.get(rule.kind)
        usual = default_of(rule.kind, is_alert=level == rules.CRITICAL)
        wants = _wants_of_row(row, usual) if row else usual
        choices.append(Choice(rule, level, route.to or rule.to, route.is_on, wants, row is not None))
    return choices


def save_preference(user: User, organization_id: int, kind: str, wants: Wants, *, actor: Actor) -> Preference:
    """Save the user's choice. Raise KeyError for a kind that is not in the table.

    Of a kind that is not an alert, chat and push are saved once the user changes them: not choosing them for a
    toast must not turn them off for an alert that the organization makes of it.
    """
    if rules.BY_KIND[kind].level == rules.CRITICAL:
        wants = replace(wants, shown=True)
    route = Route.objects.of(organization_id).filter(kind=kind).first() or Route()
    is_alert = (route.level or rules.BY_KIND[kind].level) == rules.CRITICAL
    with transaction.atomic():
        own = Preference.objects.of(organization_id).filter(user=user, kind=kind).first() or Preference(kind=kind)
        values: dict[str, bool | None] = asdict(wants)
        if not is_alert:
            before = _wants_of_row(own, default_of(kind, is_alert=False))
            values |= {way: getattr(own, way) for way in ("chat", "push") if values[way] == getattr(before, way)}
        row, _ = Preference.objects.update_or_create(
            organization_id=organization_id,
            user=user,
            kind=kind,
            defaults=values,
        )
        events.append(
            organization_id, "preference.changed", row.pk, actor=actor, kind_of_event=kind, user_id=user.pk
        )
    return row


def reset_preferences(user: User, organization_id: int, *, actor: Actor) -> int:
    """Reset the user's choices to the defaults. Return the number of kinds reset."""
    with transaction.atomic():
        own = Preference.objects.of(organization_id).filter(user=user).select_for_update(no_key=True)
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


def plan_of(organization_id: int) -> Plan:
    """Return the escalation plan for an alert that is raised now."""
    policy = EscalationPolicy.objects.of(organization_id).first() or EscalationPolicy()
    rows: list[EscalationStep] = list(policy.steps.all()) if policy.pk else []
    steps = [
        Step(row.audience, row.after_s, row.spacing_s, row.sms, row.voice, row.chat, row.push) for row in rows
    ]
    return Plan(
        repeat_s=policy.repeat_s or settings.ALERT_REPEAT_S,
        again_after_s=policy.again_after_s or settings.ALERT_AGAIN_AFTER_S,
        steps=tuple(steps) or default_steps(),
        return_after_s=policy.return_after_s or settings.ALERT_RETURN_AFTER_S,
    )


def default_steps() -> tuple[Step, ...]:
    """Return the installation's escalation steps (setting ALERT_STEPS)."""
    return tuple(Step(**step) for step in settings.ALERT_STEPS)


def call_pool(organization_id: int) -> DispatchPool | None:
    """Return the pool that places alert calls: the policy's, the default one, or any that is not paused."""
    policy = EscalationPolicy.objects.of(organization_id).select_related("call_pool").first()
    if policy is not None and policy.call_pool is not None:
        return policy.call_pool
    pools = DispatchPool.objects.of(organization_id).filter(kind=DispatchPool.Kind.CALLS)
    pool: DispatchPool | None = pools.order_by("is_paused", "-is_default", "pk").first()
    return pool
