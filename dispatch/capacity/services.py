"""Changing limits, pauses and credentials. All take effect at the next question for a line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.db import IntegrityError, transaction

from dispatch.capacity.models import NUMBER_TAKEN, DispatchPool, OutboundNumber, ProviderAccount
from dispatch.core import events
from dispatch.core.events import Actor

SUBJECTS = {DispatchPool: "pool", OutboundNumber: "number", ProviderAccount: "account"}
Limited = DispatchPool | OutboundNumber | ProviderAccount


class NumberTaken(Exception):
    """Another row of the same caller number is in use."""


def set_paused(row: DispatchPool | OutboundNumber, paused: bool, *, actor: Actor) -> bool:
    """Pauses or resumes; False when it was so already. Calls under way go on. Raises NumberTaken when a number is
    to be resumed that somebody else calls from by now."""
    with transaction.atomic():
        try:
            with transaction.atomic():
                moved = type(row).objects.filter(pk=row.pk, is_paused=not paused).update(is_paused=paused)
        except IntegrityError as error:
            raise NumberTaken(NUMBER_TAKEN) from error
        if not moved:
            return False
        row.is_paused = paused
        _note(row, "paused" if paused else "resumed", actor)
        return True


def save(row: Limited, changed: Mapping[str, Any], *, actor: Actor) -> None:
    """Writes a row from its form: all of a new one, only `changed` (field → new value) of another."""
    with transaction.atomic():
        if row.pk is None:
            row.save()
            _note(row, "added", actor)
            return
        names = [name for name in changed if name != "organization"]
        if not names:
            return
        row.save(update_fields=names)
        paused = changed.get("is_paused")
        if paused is not None:
            _note(row, "paused" if paused else "resumed", actor)
        if others := [name for name in names if name != "is_paused"]:
            _note(row, "changed", actor, fields=others)


def set_token(account: ProviderAccount, token: str, *, actor: Actor) -> None:
    """Gives the account a new token; the one before is still accepted on webhooks until `end_rotation`."""
    with transaction.atomic():
        before = ProviderAccount.objects.select_for_update().get(pk=account.pk)
        account.previous_auth_token, account.auth_token = before.auth_token, token
        account.save(update_fields=["auth_token", "previous_auth_token"])
        _note(account, "token_changed", actor)


def end_rotation(account: ProviderAccount, *, actor: Actor) -> bool:
    """From now on only the present token is accepted; False when that was so already."""
    with transaction.atomic():
        before = ProviderAccount.objects.select_for_update().get(pk=account.pk)
        if not before.previous_auth_token:
            return False
        account.previous_auth_token = ""
        account.save(update_fields=["previous_auth_token"])
        _note(account, "rotation_ended", actor)
        return True


def _note(row: Limited, verb: str, actor: Actor, **data: Any) -> None:
    events.append(row.organization_id, f"{SUBJECTS[type(row)]}.{verb}", row.pk, actor=actor, name=str(row), **data)
