"""The switches that hold leads back: the kill switch, the promoter, an organization, a campaign.

Each is one row, read anew by every batch, so that it is effective at once; each change is an Event with its actor,
and what it held back is found and released by `lifting`, which a lost wake-up delays and never prevents."""

from __future__ import annotations

from typing import Any

from django.db import transaction

from dispatch.core import events, queues
from dispatch.core.events import Actor
from dispatch.leads import schedule
from dispatch.leads.models import Campaign, EngineSwitch, LeadDispatch

LIFTED = "leads_lifted"  # the loop that releases what is no longer held


def set_engine(
    *, is_stopped: bool | None = None, promoter_paused: bool | None = None, actor: Actor
) -> EngineSwitch:
    """The switches for all organizations; None leaves one as it is. Each organization's log is told."""
    with transaction.atomic():
        EngineSwitch.objects.get_or_create(pk=1)
        row = EngineSwitch.objects.select_for_update().get(pk=1)
        changed = _change(row, {"is_stopped": is_stopped, "promoter_paused": promoter_paused})
        if changed:
            for organization_id in LeadDispatch.objects.order_by("organization_id").values_list(
                "organization_id", flat=True
            ):
                events.append(organization_id, "lead_engine.switched", row.pk, actor=actor, **changed)
            _wake()
    return row


def set_dispatch(
    organization_id: int, *, mode: str | None = None, is_paused: bool | None = None, actor: Actor
) -> LeadDispatch:
    """How far an organization's leads go (off, dry_run, live), and its pause; None leaves one as it is.

    Raises ValueError for a mode that there is not."""
    if mode is not None and mode not in LeadDispatch.Mode.values:
        raise ValueError(f"{mode!r} is no mode: {', '.join(LeadDispatch.Mode.values)}.")
    with transaction.atomic():
        LeadDispatch.objects.get_or_create(organization_id=organization_id)
        row = LeadDispatch.objects.select_for_update().get(organization_id=organization_id)
        changed = _change(row, {"mode": mode, "is_paused": is_paused})
        if changed:
            events.append(organization_id, "lead_dispatch.switched", row.pk, actor=actor, **changed)
            _wake()
    return row


def pause_campaign(campaign_id: int, is_paused: bool, *, actor: Actor) -> Campaign:
    """Pauses a campaign or lifts its pause. Raises Campaign.DoesNotExist."""
    with transaction.atomic():
        row = Campaign.objects.select_for_update(no_key=True).get(pk=campaign_id)
        if _change(row, {"is_paused": is_paused}):
            kind = "campaign.paused" if is_paused else "campaign.resumed"
            events.append(row.organization_id, kind, row.pk, actor=actor)
            _wake()
    return row


def _change(row: Any, wanted: dict[str, Any]) -> dict[str, Any]:
    """Writes what differs, and says what did."""
    changed = {name: value for name, value in wanted.items() if value is not None and getattr(row, name) != value}
    for name, value in changed.items():
        setattr(row, name, value)
    if changed:
        row.save(update_fields=list(changed))
    return changed


def _wake() -> None:
    queues.wake(LIFTED)
    queues.wake(schedule.PROMOTER)
