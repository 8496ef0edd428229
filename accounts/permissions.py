"""Who may do what: one table for roles, one line per view for what its actions require."""

from __future__ import annotations

from typing import Any

from rest_framework.permissions import BasePermission
from rest_framework.request import Request

from accounts.models import ApiKey, Membership

# What an action can require beside a key's scope.
MEMBER = "member"  # a signed-in person of any role; no key
ADMIN = "admin"  # a signed-in Admin; no key, whatever its scopes
ANYONE = "anyone"  # whoever is recognised, person or key
SUPERUSER = "superuser"  # a signed-in superuser, for what holds for all organizations; no key

_SCOPE = ApiKey.Scope
ROLE_MAY: dict[str, frozenset[str]] = {
    Membership.Role.DISPATCHER: frozenset(
        {ANYONE, MEMBER, _SCOPE.READ, _SCOPE.SUBMIT, _SCOPE.JOBS, _SCOPE.MESSAGES, _SCOPE.SCHEDULES}
    ),
    Membership.Role.ADMIN: frozenset({ANYONE, MEMBER, ADMIN, *_SCOPE.values}),
}


class InOrganization(BasePermission):
    """Lets in who belongs to an organization and may do what the view's action requires.

    A view says what it requires as data, by action (view sets) or by method in lower case (plain views):

        required = {"list": "read", "retrieve": "read", "create": "submissions:write", "assign": "jobs:write"}

    A value is an API key's scope ("read", "submissions:write", "jobs:write", "manage"), which people have by their
    role, or one of MEMBER, ADMIN, ANYONE, SUPERUSER; a tuple means any of its values, as (MEMBER, "manage"). An
    action that is not named is denied to all."""

    def has_permission(self, request: Request, view: Any) -> bool:
        if getattr(request, "organization", None) is None:
            return False
        action = getattr(view, "action", None) or (request.method or "").lower().replace("head", "get")
        if not hasattr(view, action) or request.method == "OPTIONS":
            return True  # nothing there to run: the answer is 405
        needed = getattr(view, "required", {}).get(action)
        return any(may(request, one) for one in ((needed,) if isinstance(needed, str) else needed or ()))


def may(request: Request, needed: str) -> bool:
    """Whether the caller, person or key, has what `needed` names."""
    if needed == SUPERUSER:
        return bool(request.user.is_superuser)
    if isinstance(request.auth, ApiKey):
        return needed == ANYONE or needed in request.auth.scopes
    return needed in ROLE_MAY.get(request.role or "", frozenset())
