"""What is kept of a user: their account, memberships and sign-ins."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from axes.models import AccessAttempt, AccessLog
from django.contrib.admin.models import LogEntry
from django.contrib.contenttypes.models import ContentType

from accounts.models import ApiKey, Membership, User
from dispatch.core import personal
from dispatch.core.personal import Part, Person, Trace

SIGN_INS = (AccessAttempt, AccessLog)


def _of(person: Person) -> Any:
    """The member, by id: whoever shares a phone or an e-mail with a customer is not meant by those."""
    members = User.objects.filter(memberships__organization_id=person.organization_id).distinct()
    return members.filter(pk=person.user_id) if person.user_id is not None else members.none()


def rows(person: Person) -> dict[str, list[dict[str, Any]]]:
    users = list(_of(person))
    emails, ids = [user.email for user in users], [user.pk for user in users]
    names = ("id", "email", "name", "phone", "is_active", "created_at", "last_login")
    own = Membership.objects.of(person.organization_id).filter(user_id__in=ids)
    found = {
        "users": personal.as_rows(User.objects.filter(pk__in=ids), *names),
        "memberships": personal.as_rows(own),
        "api_keys_made": personal.as_rows(ApiKey.objects.filter(created_by__in=ids), "id", "name", "created_at"),
    }
    for model in SIGN_INS:
        signed_in = model.objects.filter(username__in=emails)
        found[model._meta.model_name or ""] = personal.as_rows(
            signed_in, "id", "username", "ip_address", "user_agent", "attempt_time"
        )
    return found


def blocked_by(person: Person) -> Iterable[str]:
    for user in _of(person):
        if user.is_superuser:
            yield f"{user} is a superuser: take that away first."
        if user.memberships.exclude(organization_id=person.organization_id).exists():
            yield f"{user} is a member of other organizations: end those memberships first."
        for own in user.memberships.filter(role=Membership.Role.ADMIN, is_active=True):
            others = Membership.objects.of(own.organization_id).filter(role=own.role, is_active=True)
            if not others.exclude(user=user).exists():
                yield f"{user} is the last Admin: make somebody else one first."


def traces(person: Person) -> list[Trace]:
    found = []
    for user in _of(person):
        found.append(Trace("user", [user.pk], [user.name, user.email, str(user.phone)]))
        found.append(Trace("membership", list(user.memberships.values_list("pk", flat=True)), [user.name]))
    return found


def erase(person: Person) -> int:
    count = 0
    for user in list(_of(person)):
        for model in SIGN_INS:
            model.objects.filter(username=user.email).delete()
        kind = ContentType.objects.get_for_model(User)
        LogEntry.objects.filter(content_type=kind, object_id=str(user.pk)).update(object_repr=f"User {user.pk}")
        user.memberships.update(is_active=False, on_duty=False)
        user.name, user.email, user.phone = f"Erased user {user.pk}", f"erased-{user.pk}@invalid.invalid", ""
        user.is_active = False
        user.set_unusable_password()  # ends every session
        user.save()
        count += 1
    return count


PART = Part(rows, erase, traces, blocked_by)
