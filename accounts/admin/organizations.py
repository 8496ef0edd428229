"""Administer organizations, members and users."""

from __future__ import annotations

from typing import Any

from allauth.account.models import EmailAddress
from allauth.mfa.models import Authenticator
from allauth.usersessions.models import UserSession
from django import forms
from django.conf import settings
from django.contrib import admin, messages
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Group
from django.db import models
from django.http import HttpRequest, HttpResponse
from django.utils.html import format_html
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _
from phonenumber_field.formfields import PhoneNumberField
from rest_framework.exceptions import Throttled
from unfold.decorators import action, display
from unfold.widgets import (
    UnfoldAdminEmailInputWidget,
    UnfoldAdminTextInputWidget,
)

from accounts import invitations, services
from accounts.admin.base import EVERYTHING, VIEW, OwnedAdmin, OwnedForm, OwnedTabularInline, render_secret_once
from accounts.alert_phones import AlertPhone, with_alert_phone
from accounts.auth import second_factor, security_mail, sessions
from accounts.auth.throttling import parse_rate, take_tokens
from accounts.models import Membership, Organization, User, read_countries, read_country
from accounts.phone_inputs import PhoneInput
from accounts.sso import services as sso
from dispatch.core.labels import BadgeColors, label, translate_label
from dispatch.core.stored_texts import mark_stored

admin.site.unregister(Group)
PHONE_COLORS = BadgeColors(
    {
        AlertPhone.CONFIRMED.label: "success",
        AlertPhone.ACCEPTED.label: "warning",
        AlertPhone.UNCONFIRMED.label: "danger",
        AlertPhone.NONE.label: "danger",
    }
)
# How often a member can be asked to confirm the phone.
REMINDER_RATE = parse_rate("1/hour")

# Secrets and sessions: only services and their owner change them.
for model in (EmailAddress, Authenticator, UserSession):
    admin.site.unregister(model)


class OrganizationForm(OwnedForm):
    """Accept country codes in any case."""

    def clean_default_region(self) -> str:
        return read_country(self.cleaned_data["default_region"])

    def clean_allowed_countries(self) -> list[str]:
        return read_countries(self.cleaned_data["allowed_countries"])


@admin.register(Organization)
class OrganizationAdmin(OwnedAdmin):
    """Administer organizations. Only superusers add one, or change its slug or whether it is active."""

    form = OrganizationForm
    admin_may = frozenset({"view", "change"})
    superuser_may = frozenset({"view", "add", "change"})
    list_display = ["name", "slug", "time_zone", "is_active"]
    search_fields = ["name", "slug"]
    fields = [
        "name", "slug", "time_zone", "default_region", "distance_unit", "language", "voice", "allowed_countries",
        "requires_second_factor", "is_active",
    ]  # fmt: skip

    def of_organizations(self, rows: models.QuerySet, organizations: list[int]) -> models.QuerySet:
        return rows.filter(pk__in=organizations)

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> list[str]:
        return [] if request.user.is_superuser else ["slug", "is_active"]

    def save_model(self, request: HttpRequest, obj: Organization, form: Any, change: bool) -> None:
        if not change:
            obj.save()
            return
        changes = {name: form.cleaned_data[name] for name in form.changed_data}
        services.change_organization(obj.pk, changes, actor=request.actor)


class AlertPhoneMixin:
    """Show whether alerts reach a member's phone. Mix in before the base class."""

    def get_queryset(self, request: HttpRequest) -> models.QuerySet:
        return with_alert_phone(super().get_queryset(request))  # type: ignore[misc]

    @display(description=label("phone for alerts"), label=PHONE_COLORS)
    def alert_phone(self, membership: Any) -> str:
        return translate_label(AlertPhone(membership.alert_phone).label) if membership.is_active else ""


class AlertPhoneFilter(admin.SimpleListFilter):
    """Filter members by whether alerts can use their phone."""

    title = label("phone for alerts")
    parameter_name = "alert_phone"

    def lookups(self, request: Any, model_admin: Any) -> list[tuple[str, str]]:
        return [(value, label(words)) for value, words in AlertPhone.choices]

    def queryset(self, request: Any, queryset: models.QuerySet) -> models.QuerySet:
        return queryset.filter(alert_phone=self.value(), is_active=True) if self.value() else queryset


class MembershipsOfUser(AlertPhoneMixin, OwnedTabularInline):
    """Show a user's memberships in organizations that the reader may see."""

    model = Membership
    admin_may = VIEW
    fields = ["organization", "role", "is_active", "on_duty", "alert_phone"]
    readonly_fields = ["alert_phone"]
    exclude = ()
    verbose_name_plural = label("memberships")


@admin.register(User)
class UserAdmin(OwnedAdmin):
    """Administer users.

    Superusers create users and superusers. An admin sees the members of their organizations, and may correct the
    name and phone of those who belong to no other organization.
    """

    admin_may = frozenset({"view", "change"})
    superuser_may = EVERYTHING
    list_display = ["name", "email", "phone", "is_active", "last_login"]
    search_fields = ["name", "email"]
    fields = ["name", "email", "phone", "is_active", "is_superuser", "last_login", "second_factor_at"]
    inlines = [MembershipsOfUser]
    actions_detail = ["new_password_link", "end_sessions", "reset_second_factor"]

    def of_organizations(self, rows: models.QuerySet, organizations: list[int]) -> models.QuerySet:
        joined = Membership.objects.filter(organization__in=organizations, joined_at__isnull=False)
        return rows.filter(pk__in=joined.values("user_id"))

    def permitted(self, request: HttpRequest, permission: str, obj: Any = None) -> bool:
        if not super().permitted(request, permission, obj):
            return False
        if permission == "view" or not isinstance(obj, User):
            return True
        return services.is_only_theirs(obj, self.organizations_where(request, permission))

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> list[str]:
        if request.user.is_superuser:
            return ["last_login", "second_factor_at"]
        return ["email", "is_active", "is_superuser", "last_login", "second_factor_at"]

    def get_inlines(self, request: HttpRequest, obj: Any) -> list:
        return self.inlines if obj else []

    def get_paginator(self, request: HttpRequest, queryset: models.QuerySet, *args: Any, **kwargs: Any) -> Any:
        """Page the list, or a history. In that, an Admin sees only what people of their organizations changed.

        The person may have belonged to other organizations before.
        """
        if queryset.model is LogEntry:
            queryset = queryset.filter(user__in=self.visible(request, User))
        return super().get_paginator(request, queryset, *args, **kwargs)

    def save_model(self, request: HttpRequest, obj: User, form: Any, change: bool) -> None:
        if not change:
            obj.set_unusable_password()
        obj.save(update_fields=form.changed_data if change else None)
        if change and "email" in form.changed_data:
            services.reset_proof_of_address(obj, former=form.initial["email"])
        if "is_active" in form.changed_data and not obj.is_active:
            services.revoke_keys_of(obj, actor=request.actor)
        elif not obj.is_superuser and "is_superuser" in form.changed_data:
            services.revoke_keys_without_rights(obj, actor=request.actor)

    def delete_model(self, request: HttpRequest, obj: User) -> None:
        services.delete_user(obj, actor=request.actor)

    @action(
        description=_("New password link"),
        permissions=["change"],
        dialog={
            "title": _("Create a link for setting a password?"),
            "description": _(
                "The link is mailed to this person. If no mail server is configured, it is shown to "
                "you instead; anyone who has it can sign in as them. Their current password works "
                "until the link is used."
            ),
        },
    )
    def new_password_link(self, request: HttpRequest, form: Any, object_id: str) -> HttpResponse:
        user = self.get_object(request, object_id)
        try:
            invitations.take_mail_token(user, user.joined_memberships.values_list("organization_id", flat=True))
        except Throttled as refusal:
            messages.error(request, str(refusal))
            return self.back_to(object_id)
        link = settings.PUBLIC_BASE_URL + services.password_path(user)
        second_factor.append_event(user, "membership.password_link_created", request.actor)
        self.log_change(request, user, mark_stored("Created a link for setting a password."))
        if not invitations.sends_mail():
            return HttpResponse(format_html('<div id="dialog-form"><p><code>{}</code></p></div>', link))
        if invitations.send_password_link(user, link):
            messages.success(request, gettext("The link was mailed to {email}.").format(email=user.email))
        else:
            messages.error(request, gettext("The mail server refused the message. Try again later."))
        return self.back_to(object_id)

    @action(
        description=_("End sessions"),
        permissions=["change"],
        dialog={
            "title": _("End all sessions of this person?"),
            "description": _(
                "They are signed out on every device and can sign in again. Their API keys still work."
            ),
        },
    )
    def end_sessions(self, request: HttpRequest, form: Any, object_id: str) -> HttpResponse:
        user = self.get_object(request, object_id)
        sessions.end_all_sessions(user, actor=request.actor)
        self.log_change(request, user, mark_stored("Ended all sessions."))
        messages.success(request, gettext("All sessions of {user} were ended.").format(user=user))
        return self.back_to(object_id)

    @action(
        description=_("Reset second factor"),
        permissions=["change"],
        dialog={
            "title": _("Reset the second factor of this person?"),
            "description": _(
                "Their authenticator app, passkeys and recovery codes stop working, and they are "
                "signed out. Make sure that you talk to the right person: after this, the password alone signs in."
            ),
        },
    )
    def reset_second_factor(self, request: HttpRequest, form: Any, object_id: str) -> HttpResponse:
        user = self.get_object(request, object_id)
        services.reset_second_factor(user, actor=request.actor)
        self.log_change(request, user, mark_stored("Reset the second factor."))
        messages.success(
            request, gettext("{user} can set up a new second factor at the next sign-in.").format(user=user)
        )
        return self.back_to(object_id)


class NewMemberForm(OwnedForm):
    """Invite a person by email. The User is found or created."""

    email = forms.EmailField(label=_("Email"), max_length=254, widget=UnfoldAdminEmailInputWidget)
    name = forms.CharField(
        label=_("Name"),
        max_length=120,
        widget=UnfoldAdminTextInputWidget,
        help_text=_("The invitee confirms it when joining."),
    )
    phone = PhoneNumberField(
        label=_("Phone"),
        required=False,
        widget=PhoneInput,
        help_text=_("The invitee confirms it when joining."),
    )

    class Meta:
        model = Membership
        fields = ["role"]

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean()
        existing = Membership.objects.filter(
            organization=cleaned.get("organization"), user__email=(cleaned.get("email") or "").strip().lower()
        )
        if existing.exists():
            self.add_error("email", gettext("This person is already a member or invited."))
        return cleaned


@admin.register(Membership)
class MembershipAdmin(AlertPhoneMixin, OwnedAdmin):
    """Administer memberships. Adding one invites the person; they become a member when they join."""

    list_display = [
        "person",
        "email",
        "role",
        "is_active",
        "joined_at",
        "on_duty",
        "alert_phone",
        "alert_order",
    ]
    list_filter = ["role", "is_active", "on_duty", AlertPhoneFilter]
    list_select_related = ["user"]
    search_fields = ["user__name", "user__email"]
    ordering = ["user__name"]
    fields = [
        "person",
        "email",
        "role",
        "is_active",
        "api_keys",
        "joined_at",
        "on_duty",
        "duty_changed_at",
        "alert_phone",
        "alert_order",
    ]
    add_fields = ["email", "name", "phone", "role"]
    readonly_fields = ["person", "email", "api_keys", "joined_at", "duty_changed_at", "alert_phone"]
    actions = ["ask_to_confirm_phone"]
    actions_detail = ["invite_again", "reset_single_sign_on"]

    def get_search_results(self, request: HttpRequest, queryset: Any, search_term: str) -> tuple[Any, bool]:
        """Find people who have not joined only by email: a search by name would disclose their name."""
        rows, has_duplicates = super().get_search_results(request, queryset, search_term)
        if search_term:
            rows = rows.filter(
                models.Q(joined_at__isnull=False) | models.Q(user__email__icontains=search_term.strip())
            )
        return rows, has_duplicates

    @display(description=label("person"))
    def person(self, membership: Membership) -> str:
        return membership.person

    @display(description=label("email"), ordering="user__email")
    def email(self, membership: Membership) -> str:
        return membership.user.email

    @display(description=label("API keys"))
    def api_keys(self, membership: Membership) -> str:
        names = ", ".join(map(str, services.keys_made_by(membership)))
        if not names:
            return gettext("None")
        return gettext(
            "{names}. They stop working when this person is removed, deactivated or no longer an Admin."
        ).format(names=names)

    def get_form(self, request: HttpRequest, obj: Any = None, change: bool = False, **kwargs: Any) -> Any:
        return super().get_form(request, obj, change, **(kwargs if obj else {**kwargs, "form": NewMemberForm}))

    def get_fields(self, request: HttpRequest, obj: Any = None) -> list[str]:
        return list(self.fields if obj else self.add_fields)

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        if obj:
            return super().get_fieldsets(request, obj)
        return [(None, {"fields": ["organization", *self.add_fields]})]

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> list[str]:
        if obj is None:
            return []
        return [*self.readonly_fields, *([] if obj.joined_at else ["on_duty"])]

    def save_model(self, request: HttpRequest, obj: Membership, form: Any, change: bool) -> None:
        if change:
            changes = {name: form.cleaned_data[name] for name in form.changed_data}
            on_duty = changes.pop("on_duty", None)
            member = services.change_member(obj.pk, actor=request.actor, **changes)
            if on_duty is not None:
                services.set_duty(obj.pk, on_duty and member.is_active, actor=request.actor)
            return
        given = {name: form.cleaned_data[name] or "" for name in ("email", "name", "phone", "role")}
        added, _ = services.add_member(obj.organization, **given, actor=request.actor)
        obj.pk, obj.user, obj.joined_at, obj._state.adding = added.pk, added.user, None, False

    def response_add(
        self, request: HttpRequest, obj: Membership, post_url_continue: str | None = None
    ) -> HttpResponse:
        sent = invitations.send_invitation(obj)
        if sent.link:
            text = gettext(
                "No mail server is configured, so pass on this link yourself. It works once, for joining."
            )
            return render_secret_once(
                self, request, gettext("{person} was invited").format(person=obj.person), text, sent.link
            )
        self._report_delivery(request, obj, sent)
        return super().response_add(request, obj, post_url_continue)

    @action(
        description=_("Invite again"),
        permissions=["change"],
        dialog={
            "title": _("Send the invitation again?"),
            "description": (
                _(
                    "The invitation goes to their email address. If no mail server is configured, you get the "
                    "link to pass on."
                )
            ),
        },
    )
    def invite_again(self, request: HttpRequest, form: Any, object_id: str) -> HttpResponse:
        membership = self.get_object(request, object_id)
        if membership.joined_at is not None:
            messages.warning(request, gettext("This person has already joined."))
            return self.back_to(object_id)
        try:
            sent = invitations.send_invitation_again(membership)
        except Throttled as refusal:
            messages.error(request, str(refusal))
            return self.back_to(object_id)
        if sent.link:
            return HttpResponse(format_html('<div id="dialog-form"><p><code>{}</code></p></div>', sent.link))
        self._report_delivery(request, membership, sent)
        return self.back_to(object_id)

    @action(
        description=_("Reset single sign-on"),
        permissions=["change"],
        dialog={
            "title": _("Reset single sign-on for this person?"),
            "description": _(
                "Their sessions by single sign-on end, and the next sign-in links the identity that has their "
                "email address. Do this only if their identity at the provider was replaced."
            ),
        },
    )
    def reset_single_sign_on(self, request: HttpRequest, form: Any, object_id: str) -> HttpResponse:
        if sso.unlink_identity(self.get_object(request, object_id), actor=request.actor):
            messages.success(
                request,
                gettext(
                    "The link was removed, and their sessions by single sign-on were ended. "
                    "The next sign-in creates a new link."
                ),
            )
        else:
            messages.warning(request, gettext("This person has not signed in by single sign-on."))
        return self.back_to(object_id)

    @admin.action(
        description=_("Ask to confirm the phone: members whose phone is not confirmed get an email"),
        permissions=["change"],
    )
    def ask_to_confirm_phone(self, request: HttpRequest, queryset: models.QuerySet) -> None:
        if not settings.EMAIL_IS_SET_UP:
            messages.warning(
                request, gettext("No mail server is configured. Ask them to open Notification settings.")
            )
            return
        waiting = queryset.filter(is_active=True).exclude(alert_phone=AlertPhone.CONFIRMED)
        asked, recently = 0, 0
        for membership in waiting.select_related("user", "organization"):
            (token,) = take_tokens((f"phone-reminder:{membership.pk}", REMINDER_RATE))
            if token.wait_ms:
                recently += 1
                continue
            security_mail.enqueue_phone_reminder(membership)
            self.log_change(request, membership, mark_stored("Asked to confirm the phone."))
            asked += 1
        if asked:
            messages.success(
                request,
                ngettext("Asked {asked:,} member by email.", "Asked {asked:,} members by email.", asked).format(
                    asked=asked
                ),
            )
        if recently:
            messages.warning(
                request,
                gettext("Already asked within the last hour: {recently:,}. Try again later.").format(
                    recently=recently
                ),
            )
        if not asked and not recently:
            messages.info(request, gettext("None of these members needs to confirm a phone."))

    def _report_delivery(
        self, request: HttpRequest, membership: Membership, sent: invitations.InvitationResult
    ) -> None:
        if sent.mailed:
            messages.success(
                request, gettext("The invitation was mailed to {person}.").format(person=membership.person)
            )
        else:
            messages.error(request, gettext("The mail server refused the invitation. Send it again later."))

    def delete_model(self, request: HttpRequest, obj: Membership) -> None:
        services.remove_member(obj.pk, actor=request.actor)
