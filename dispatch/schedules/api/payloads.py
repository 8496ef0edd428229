"""Validate the payload of a schedule or run, and the caller's scope for it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from rest_framework import serializers

from accounts.models import Organization
from dispatch.core.languages import gettext as _
from dispatch.schedules import kinds

MAX_PAYLOAD_BYTES = 256 * 1024


def sized_payload(value: dict[str, Any]) -> dict[str, Any]:
    """Return the payload. Raises ValidationError if it is too large."""
    if len(json.dumps(value)) > MAX_PAYLOAD_BYTES:
        raise serializers.ValidationError(_("Must be at most {most} bytes.").format(most=MAX_PAYLOAD_BYTES))
    return value


def checked_payload(organization: Organization, kind: str, value: dict[str, Any]) -> dict[str, Any]:
    """Return the payload, validated by its kind. Raises ValidationError by field."""
    if not kinds.is_known(kind):
        raise serializers.ValidationError(_("This process cannot validate payloads of this kind."))
    kinds.get_kind(kind).check(organization, sized_payload(value))
    return value


def check_scope(context: Mapping[str, Any], kind: str, field: str = "") -> None:
    """Require the scope of the kind's own API: scheduling an action requires the permission for it."""
    scope = kinds.get_kind(kind).scope
    if not context["may"](scope):
        detail = serializers.ErrorDetail(
            _("Also requires the scope {scope}.").format(scope=scope), code="permission_denied"
        )
        raise serializers.ValidationError({field: [detail]} if field else [detail])
