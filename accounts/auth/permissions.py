"""Authorize callers by a table of roles and by the requirements that each view declares for its actions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rest_framework.permissions import BasePermission
from rest_framework.request import Request

from accounts.models import ApiKey, Membership
from dispatch.core.languages import gettext

# Requirements other than a key's scope.
MEMBER = "member"  # a signed-in user of any role; no key
ADMIN = "admin"  # a signed-in admin; no key, whatever its scopes
ANYONE = "anyone"  # any authenticated caller, user or key
SUPERUSER = "superuser"  # a signed-in superuser, for settings of all organizations; no key

_SCOPE = ApiKey.Scope
ROLE_MAY: dict[str, frozenset[str]] = {
    Membership.Role.DISPATCHER: frozenset(
        {ANYONE, MEMBER, _SCOPE.READ, _SCOPE.SUBMIT, _SCOPE.JOBS, _SCOPE.MESSAGES, _SCOPE.SCHEDULES}
    ),
    Membership.Role.ADMIN: frozenset({ANYONE, MEMBER, ADMIN, *_SCOPE.values}),
}


class InOrganization(BasePermission):
    """Allow members of an organization who have the permission that the view's action requires.

    A view declares its requirements by action (view sets) or by lower-case method (plain views):

        required = {"list": "read", "retrieve": "read", "create": "submissions:write", "assign": "jobs:write"}

    A value is an API key's scope ("read", "submissions:write", "jobs:write", "manage"), which users have by
    role, or one of MEMBER, ADMIN, ANYONE, SUPERUSER; a tuple means any of its values, as (MEMBER, "manage"). An
    action without an entry is denied.
    """

    def has_permission(self, request: Request, view: Any) -> bool:
        if getattr(request, "organization", None) is None:
            return False
        action = getattr(view, "action", None) or (request.method or "").lower().replace("head", "get")
        if not hasattr(view, action) or request.method == "OPTIONS":
            return True  # no such method: the response is 405
        needed = getattr(view, "required", {}).get(action) or ()
        choices = (needed,) if isinstance(needed, str) else needed
        if any(is_allowed(request, each) for each in choices):
            return True
        if choices and isinstance(request.auth, ApiKey):
            self.message = _why_key_is_refused(choices)
        return False


def _why_key_is_refused(choices: Sequence[str]) -> str:
    for needed in choices:
        if needed in _SCOPE.values:
            return gettext("This API key needs the scope {scope}.").format(scope=needed)
    return gettext("This needs a signed-in user. An API key can't do it.")


def is_allowed(request: Request, needed: str) -> bool:
    """Return whether the caller, user or key, has the permission `needed`."""
    if needed == SUPERUSER:
        return bool(request.user.is_superuser)
    if isinstance(request.auth, ApiKey):
        return needed == ANYONE or needed in request.auth.scopes
    return needed in ROLE_MAY.get(request.role or "", frozenset())
