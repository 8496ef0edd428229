"""By which plan an organization's alerts escalate: its rows as they are now, down to the settings."""

from __future__ import annotations

from django.conf import settings

from dispatch.capacity.models import DispatchPool
from notifications.models import EscalationPolicy, EscalationStep
from notifications.steps import Plan, Step


def plan_of(organization_id: int) -> Plan:
    """The plan that an alert raised now gets."""
    policy = EscalationPolicy.objects.of(organization_id).first() or EscalationPolicy()
    rows: list[EscalationStep] = list(policy.steps.all()) if policy.pk else []
    steps = [Step(row.audience, row.after_s, row.spacing_s, row.sms, row.voice) for row in rows]
    return Plan(
        repeat_s=policy.repeat_s or settings.ALERT_REPEAT_S,
        again_after_s=policy.again_after_s or settings.ALERT_AGAIN_AFTER_S,
        steps=tuple(steps) or default_steps(),
    )


def default_steps() -> tuple[Step, ...]:
    """The installation's own: on duty one after another, then all, then admins."""
    return tuple(Step(**step) for step in settings.ALERT_STEPS)


def call_pool(organization_id: int) -> DispatchPool | None:
    """Whose numbers call for alerts: the policy's, the default one, any that is not paused."""
    policy = EscalationPolicy.objects.of(organization_id).select_related("call_pool").first()
    if policy is not None and policy.call_pool is not None:
        return policy.call_pool
    pools = DispatchPool.objects.of(organization_id).filter(kind=DispatchPool.Kind.CALLS)
    found: DispatchPool | None = pools.order_by("is_paused", "-is_default", "pk").first()
    return found
