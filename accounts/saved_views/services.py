"""List and change the saved views of the board. No events: a view changes only what people's screens show."""

from __future__ import annotations

import unicodedata

from django.core.exceptions import PermissionDenied, ValidationError
from django.db import transaction
from django.db.models import Q, QuerySet, Value
from django.db.models.functions import Lower

from accounts.models import Membership, Organization, User
from accounts.saved_views.models import MAX_NAME, MAX_QUERY, DefaultView, SavedView
from dispatch.core.languages import gettext as _

# Views of one person in one organization, and shared views of one organization.
MAX_OWN, MAX_SHARED = 20, 50


def visible_views(organization: Organization, user: User) -> QuerySet[SavedView]:
    """Select the user's own views, and those that everyone in the organization uses."""
    found: QuerySet[SavedView] = SavedView.objects.of(organization).filter(Q(owner=user) | Q(owner=None))
    return found


def default_view(organization: Organization, user: User) -> SavedView | None:
    """Return the view with which the user's board opens, or None."""
    chosen = DefaultView.objects.of(organization).filter(user=user).values("view")
    return visible_views(organization, user).filter(pk__in=chosen).first()


def may_change(view: SavedView, user: User, role: str) -> bool:
    """Return whether the user may rename, replace or delete the view: it is theirs, or they shared it.

    Admins may change every shared view, since the person who shared it may have left.
    """
    if view.is_shared:
        return view.shared_by_id == user.pk or role == Membership.Role.ADMIN
    return view.owner_id == user.pk


@transaction.atomic
def save_view(
    organization: Organization, user: User, role: str, name: str, query: str, *, is_shared: bool = False
) -> SavedView:
    """Save a view under this name. A view of the same name is replaced.

    Raises ValidationError {name} for an invalid name, a full list, and a shared view that the user may not change.
    """
    name = clean_name(name)
    if len(query) > MAX_QUERY:
        raise ValidationError({"name": _("These filters are too long to save.")})
    owner = None if is_shared else user
    _lock_list(organization, owner)
    views = SavedView.objects.of(organization).filter(owner=owner)
    existing = _named(views, name).first()
    if existing is not None:
        if not may_change(existing, user, role):
            taken = _("Someone else has shared a view with this name. Choose another name.")
            raise ValidationError({"name": taken})
        existing.name, existing.query = name, query
        existing.save(update_fields=["name", "query"])
        return existing
    _check_room(views, is_shared=is_shared)
    shared_by = user if is_shared else None
    return SavedView.objects.create(
        organization=organization, owner=owner, shared_by=shared_by, name=name, query=query
    )


@transaction.atomic
def rename_view(organization: Organization, view_id: int, user: User, role: str, name: str) -> SavedView:
    """Rename the view. Raises as `save_view`, SavedView.DoesNotExist and PermissionDenied."""
    name = clean_name(name)
    view = _changeable(organization, view_id, user, role)
    _check_free(organization, view.owner_id, name, view.pk)
    view.name = name
    view.save(update_fields=["name"])
    return view


@transaction.atomic
def share_view(organization: Organization, view_id: int, user: User, role: str) -> SavedView:
    """Give the user's own view to the organization. Raises as `rename_view`."""
    view = _changeable(organization, view_id, user, role)
    if view.is_shared:
        return view
    _lock_list(organization, None)
    _check_free(organization, None, view.name, view.pk)
    _check_room(SavedView.objects.of(organization).filter(owner=None), is_shared=True)
    view.owner, view.shared_by = None, user
    view.save(update_fields=["owner", "shared_by"])
    return view


@transaction.atomic
def delete_view(organization: Organization, view_id: int, user: User, role: str) -> str:
    """Delete the view, also where it is the default. Return its name. Raises as `rename_view`."""
    view = _changeable(organization, view_id, user, role)
    view.delete()
    return view.name


@transaction.atomic
def choose_default(organization: Organization, user: User, view_id: int | None) -> SavedView | None:
    """Open the user's board with this view; None: with all jobs. Raises SavedView.DoesNotExist."""
    if view_id is None:
        DefaultView.objects.of(organization).filter(user=user).delete()
        return None
    view = visible_views(organization, user).select_for_update(no_key=True).get(pk=view_id)
    DefaultView.objects.update_or_create(organization=organization, user=user, defaults={"view": view})
    return view


def clean_name(name: str) -> str:
    """Return the name without spaces around it. Raises ValidationError {name}."""
    name = " ".join(name.split())
    if not name:
        raise ValidationError({"name": _("Enter a name.")})
    if len(name) > MAX_NAME:
        raise ValidationError({"name": _("Enter at most {most} characters.").format(most=MAX_NAME)})
    if any(unicodedata.category(letter) in ("Cc", "Cf", "Cs") and letter not in "\u200c\u200d" for letter in name):
        raise ValidationError({"name": _("Remove the characters that can't be seen.")})
    return name


def _changeable(organization: Organization, view_id: int, user: User, role: str) -> SavedView:
    seen = visible_views(organization, user).get(pk=view_id)
    _lock_list(organization, seen.owner)
    view = visible_views(organization, user).select_for_update(no_key=True).get(pk=view_id)
    if not may_change(view, user, role):
        raise PermissionDenied
    return view


def _lock_list(organization: Organization, owner: User | None) -> None:
    """Lock a list of views until the end of the transaction, so that its limit and its names hold."""
    if owner is None:
        Organization.objects.select_for_update(no_key=True).get(pk=organization.pk)
    else:
        User.objects.select_for_update(no_key=True).get(pk=owner.pk)


def _check_free(organization: Organization, owner_id: int | None, name: str, but: int) -> None:
    views = SavedView.objects.of(organization).filter(owner=owner_id).exclude(pk=but)
    if _named(views, name).exists():
        raise ValidationError({"name": _("A view with this name already exists. Choose another name.")})


def _named(views: QuerySet[SavedView], name: str) -> QuerySet[SavedView]:
    """Select the view of this name, as the constraints compare names."""
    return views.alias(lower=Lower("name")).filter(lower=Lower(Value(name)))


def _check_room(views: QuerySet[SavedView], *, is_shared: bool) -> None:
    limit = MAX_SHARED if is_shared else MAX_OWN
    if views.count() >= limit:
        if is_shared:
            words = _("The organization has {limit} views. Delete one first.")
        else:
            words = _("You have {limit} views. Delete one first.")
        raise ValidationError({"name": words.format(limit=limit)})
