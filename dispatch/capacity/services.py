"""Change limits, pauses and credentials. Every change applies from the next line proposal on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.db import IntegrityError, transaction

from dispatch.capacity import account_outages
from dispatch.capacity.models import NUMBER_TAKEN, DispatchPool, OutboundNumber, ProviderAccount
from dispatch.core import events
from dispatch.core.events import Actor
from dispatch.core.stored_texts import stored_name

SUBJECTS = {DispatchPool: "pool", OutboundNumber: "number", ProviderAccount: "account"}
Limited = DispatchPool | OutboundNumber | ProviderAccount


class NumberTaken(Exception):
    """Another row with the same caller number is in use."""


def set_paused(row: DispatchPool | OutboundNumber, paused: bool, *, actor: Actor) -> bool:
    """Pause or resume. Return False if the state was unchanged. Calls in progress continue.

    Raises NumberTaken if a number to be resumed is now in use elsewhere.
    """
    with transaction.atomic():
        try:
            with transaction.atomic():
                moved = type(row).objects.filter(pk=row.pk, is_paused=not paused).update(is_paused=paused)
        except IntegrityError as error:
            raise NumberTaken(NUMBER_TAKEN) from error
        if not moved:
            return False
        row.is_paused = paused
        _append_event(row, "paused" if paused else "resumed", actor)
        return True


def save_row(row: Limited, changed: Mapping[str, Any], *, actor: Actor) -> None:
    """Save a row from its form: all fields if it is new, else only `changed` (field → new value)."""
    with transaction.atomic():
        if row.pk is None:
            row.save()
            _append_event(row, "added", actor)
            return
        names = [name for name in changed if name != "organization"]
        if not names:
            return
        row.save(update_fields=names)
        paused, active = changed.get("is_paused"), changed.get("is_active")
        if paused is not None:
            _append_event(row, "paused" if paused else "resumed", actor)
        if active is not None:
            _append_event(row, "activated" if active else "deactivated", actor)
        if others := [name for name in names if name not in ("is_paused", "is_active")]:
            _append_event(row, "changed", actor, fields=others)
        if isinstance(row, ProviderAccount):
            if not row.is_active:
                account_outages.end_outage(row.pk)
            elif account_outages.CREDENTIALS.intersection(names):
                account_outages.probe_now(row.pk)


def set_token(account: ProviderAccount, token: str, *, actor: Actor) -> None:
    """Set a new token on the account. Webhooks accept the previous one until `end_rotation`.

    The current token again changes nothing: the previous one stays valid.
    """
    with transaction.atomic():
        before = ProviderAccount.objects.select_for_update(no_key=True).get(pk=account.pk)
        if token == before.auth_token:
            return
        account.previous_auth_token, account.auth_token = before.auth_token, token
        account.save(update_fields=["auth_token", "previous_auth_token"])
        _append_event(account, "token_changed", actor)
        account_outages.probe_now(account.pk)


def end_rotation(account: ProviderAccount, *, actor: Actor) -> bool:
    """Accept only the current token from now on. Return False if no rotation was in progress."""
    with transaction.atomic():
        before = ProviderAccount.objects.select_for_update(no_key=True).get(pk=account.pk)
        if not before.previous_auth_token:
            return False
        account.previous_auth_token = ""
        account.save(update_fields=["previous_auth_token"])
        _append_event(account, "rotation_ended", actor)
        return True


def _append_event(row: Limited, verb: str, actor: Actor, **data: Any) -> None:
    events.append(
        row.organization_id, f"{SUBJECTS[type(row)]}.{verb}", row.pk, actor=actor, name=stored_name(row), **data
    )
