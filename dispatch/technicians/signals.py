"""Keep the search columns in sync with edits: `skill_ids` with skills, `hours` with shifts."""

from __future__ import annotations

from typing import Any

from django.db.models.signals import m2m_changed, post_delete, post_save, pre_delete
from django.dispatch import receiver

from dispatch.technicians import services
from dispatch.technicians.models import Shift, Skill, Technician

_AFFECTED = "_technicians_affected"


@receiver(m2m_changed, sender=Technician.skills.through)
def skills_changed(instance: Any, action: str, reverse: bool, pk_set: set[int] | None, **_: Any) -> None:
    """Refresh `skill_ids` after a change from the technician's side or the skill's (`reverse`)."""
    if not reverse:
        if action.startswith("post_"):
            services.refresh_skills([instance.pk])
    elif action == "pre_clear":  # after the clear, the affected technicians are unknown
        setattr(instance, _AFFECTED, list(instance.technicians.values_list("pk", flat=True)))
    elif action == "post_clear":
        services.refresh_skills(getattr(instance, _AFFECTED, []))
    elif action.startswith("post_"):
        services.refresh_skills(pk_set or ())


@receiver(pre_delete, sender=Skill)
def skill_going(instance: Skill, **_: Any) -> None:
    """Remember the technicians with the skill, which are unknown after its deletion."""
    setattr(instance, _AFFECTED, list(instance.technicians.values_list("pk", flat=True)))


@receiver(post_delete, sender=Skill)
def skill_gone(instance: Skill, **_: Any) -> None:
    """Refresh `skill_ids` of the technicians that `skill_going` found."""
    services.refresh_skills(getattr(instance, _AFFECTED, []))


@receiver([post_save, post_delete], sender=Shift)
def shift_changed(instance: Shift, **_: Any) -> None:
    """Refresh the technician's `hours`."""
    services.refresh_hours(instance.technician_id)
