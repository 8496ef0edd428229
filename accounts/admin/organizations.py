"""Administer organizations, members, users and API keys."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin, messages
from django.contrib.auth.models import Group
from django.db import models, transaction
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.html import format_html
from phonenumber_field.formfields import PhoneNumberField
from unfold.decorators import action, display
from unfold.widgets import (
    UnfoldAdminCheckboxSelectMultipleWidget,
    UnfoldAdminEmailInputWidget,
    UnfoldAdminSelectWidget,
    UnfoldAdminTextInputWidget,
)

from accounts import invitations, services
from accounts.admin.base import EVERYTHING, VIEW, OwnedAdmin, OwnedForm, OwnedTabularInline
from accounts.models import ApiKey, Membership, Organization, RetentionRule, User
from accounts.tenancy import user_of
from dispatch.core import clock, events
from dispatch.core.privacy import retention

admin.site.unregister(Group)


@admin.register(Organization)
class OrganizationAdmin(OwnedAdmin):
    """Administer organizations. Only superusers add one, or change its slug or whether it is active."""

    admin_may = frozenset({"view", "change"})
    superuser_may = frozenset({"view", "add", "change"})
    list_display = ["name", "slug", "time_zone", "is_active"]
    search_fields = ["name", "slug"]
    fields = ["name", "slug", "time_zone", "default_region", "distance_unit", "allowed_countries", "is_active"]

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


class MembershipsOfUser(OwnedTabularInline):
    """Show a user's memberships in organizations that the reader may see."""

    model = Membership
    admin_may = VIEW
    fields = ["organization", "role", "is_active", "on_duty"]
    exclude = ()
    verbose_name_plural = "memberships"


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
    fields = ["name", "email", "phone", "is_active", "is_superuser", "last_login"]
    inlines = [MembershipsOfUser]
    actions_detail = ["new_password_link"]

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
            return ["last_login"]
        return ["email", "is_active", "is_superuser", "last_login"]

    def get_inlines(self, request: HttpRequest, obj: Any) -> list:
        return self.inlines if obj else []

    def save_model(self, request: HttpRequest, obj: User, form: Any, change: bool) -> None:
        if not change:
            obj.set_unusable_password()
        obj.save()

    @action(
        description="New password link",
        permissions=["change"],
        dialog={
            "title": "Create a link for setting a password?",
            "description": "The link is mailed to this person. If no mail server is configured, it is shown to "
            "you instead; anyone who has it can sign in as them. Their current password works "
            "until the link is used.",
        },
    )
    def new_password_link(self, request: HttpRequest, form: Any, object_id: str) -> HttpResponse:
        user = self.get_object(request, object_id)
        link = request.build_absolute_uri(services.password_path(user))
        self.log_change(request, user, "Created a link for setting a password.")
        if not invitations.sends_mail():
            return HttpResponse(format_html('<div id="dialog-form"><p><code>{}</code></p></div>', link))
        if invitations.send_password_link(user, link):
            messages.success(request, f"The link was mailed to {user.email}.")
        else:
            messages.error(request, "The mail server refused the message. Try again later.")
        return self.back_to(object_id)


class NewMemberForm(OwnedForm):
    """Invite a person by e-mail. The User is found or created."""

    email = forms.EmailField(max_length=254, widget=UnfoldAdminEmailInputWidget)
    name = forms.CharField(
        max_length=120, widget=UnfoldAdminTextInputWidget, help_text="The invitee confirms it when joining."
    )
    phone = PhoneNumberField(
        required=False, widget=UnfoldAdminTextInputWidget, help_text="The invitee confirms it when joining."
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
            self.add_error("email", "This person is already a member or invited.")
        return cleaned


@admin.register(Membership)
class MembershipAdmin(OwnedAdmin):
    """Administer memberships. Adding one invites the person; they become a member when they join."""

    list_display = [
        "person",
        "email",
        "role",
        "is_active",
        "joined_at",
        "on_duty",
        "duty_changed_at",
        "alert_order",
    ]
    list_filter = ["role", "is_active", "on_duty"]
    list_select_related = ["user"]
    search_fields = ["user__name", "user__email"]
    ordering = ["user__name"]
    fields = ["person", "email", "role", "is_active", "joined_at", "on_duty", "duty_changed_at", "alert_order"]
    add_fields = ["email", "name", "phone", "role"]
    readonly_fields = ["person", "email", "joined_at", "duty_changed_at"]
    actions_detail = ["invite_again"]

    def get_search_results(self, request: HttpRequest, queryset: Any, search_term: str) -> tuple[Any, bool]:
        """Find people who have not joined only by e-mail: a search by name would disclose their name."""
        rows, has_duplicates = super().get_search_results(request, queryset, search_term)
        if search_term:
            rows = rows.filter(
                models.Q(joined_at__isnull=False) | models.Q(user__email__icontains=search_term.strip())
            )
        return rows, has_duplicates

    @display(description="person")
    def person(self, membership: Membership) -> str:
        return membership.person

    @display(description="e-mail", ordering="user__email")
    def email(self, membership: Membership) -> str:
        return membership.user.email

    def get_form(self, request: HttpRequest, obj: Any = None, change: bool = False, **kwargs: Any) -> Any:
        return super().get_form(request, obj, change, **(kwargs if obj else {**kwargs, "form": NewMemberForm}))

    def get_fields(self, request: HttpRequest, obj: Any = None) -> list[str]:
        return list(self.fields if obj else self.add_fields)

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        if obj:
            return super().get_fieldsets(request, obj)
        return [(None, {"fields": ["organization", *self.add_fields]})]

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> list[str]:
        return list(self.readonly_fields) if obj else []

    def save_model(self, request: HttpRequest, obj: Membership, form: Any, change: bool) -> None:
        if change:
            services.change_member(
                obj.pk, actor=request.actor, role=obj.role, is_active=obj.is_active, alert_order=obj.alert_order
            )
            services.set_duty(obj.pk, obj.on_duty and obj.is_active, actor=request.actor)
            return
        given = {name: form.cleaned_data[name] or "" for name in ("email", "name", "phone", "role")}
        added, _ = services.add_member(obj.organization, **given, actor=request.actor)
        obj.pk, obj.user, obj.joined_at, obj._state.adding = added.pk, added.user, None, False

    def response_add(
        self, request: HttpRequest, obj: Membership, post_url_continue: str | None = None
    ) -> HttpResponse:
        sent = invitations.send_invitation(obj, request.build_absolute_uri)
        if sent.link:
            text = "No mail server is configured, so pass on this link yourself. It works once, for joining."
            return shown_once(self, request, f"{obj.person} was invited", text, sent.link)
        self._report_delivery(request, obj, sent)
        return super().response_add(request, obj, post_url_continue)

    @action(
        description="Invite again",
        permissions=["change"],
        dialog={
            "title": "Send the invitation again?",
            "description": (
                "The invitation goes to their e-mail address. If no mail server is configured, you get the link "
                "to pass on."
            ),
        },
    )
    def invite_again(self, request: HttpRequest, form: Any, object_id: str) -> HttpResponse:
        membership = self.get_object(request, object_id)
        if membership.joined_at is not None:
            messages.warning(request, "This person has already joined.")
            return self.back_to(object_id)
        sent = invitations.send_invitation(membership, request.build_absolute_uri)
        if sent.link:
            return HttpResponse(format_html('<div id="dialog-form"><p><code>{}</code></p></div>', sent.link))
        self._report_delivery(request, membership, sent)
        return self.back_to(object_id)

    def _report_delivery(
        self, request: HttpRequest, membership: Membership, sent: invitations.InvitationResult
    ) -> None:
        if sent.mailed:
            messages.success(request, f"The invitation was mailed to {membership.person}.")
        else:
            messages.error(request, "The mail server refused the invitation. Send it again later.")

    def delete_model(self, request: HttpRequest, obj: Membership) -> None:
        services.remove_member(obj.pk, actor=request.actor)

    def delete_queryset(self, request: HttpRequest, queryset: models.QuerySet) -> None:
        for membership in queryset:
            self.delete_model(request, membership)


class NewKeyForm(OwnedForm):
    """Show scopes as check boxes."""

    scopes = forms.MultipleChoiceField(
        choices=ApiKey.Scope.choices, widget=UnfoldAdminCheckboxSelectMultipleWidget
    )


@admin.register(ApiKey)
class ApiKeyAdmin(OwnedAdmin):
    """Administer API keys. A key is shown once, when it is created; it can be revoked but not edited."""

    subject = "api_key"
    admin_may = frozenset({"view", "add", "act"})
    form = NewKeyForm
    list_display = ["name", "prefix", "may", "state", "last_used_at", "expires_at", "created_by"]
    list_select_related = ["created_by"]
    search_fields = ["name", "prefix"]
    fields = ["name", "scopes", "expires_at"]
    readonly_fields = ["prefix", "state", "created_by", "created_at", "revoked_at", "last_used_at"]
    actions = ["revoke"]
    actions_detail = ["revoke_this"]

    def get_fields(self, request: HttpRequest, obj: Any = None) -> list[str]:
        return [*self.fields, *self.readonly_fields] if obj else list(self.fields)

    @display(description="scopes")
    def may(self, key: ApiKey) -> str:
        return ", ".join(key.scopes)

    @display(description="state", label={"active": "success", "revoked": "danger", "expired": "warning"})
    def state(self, key: ApiKey) -> str:
        if key.revoked_at:
            return "revoked"
        return "expired" if key.expires_at and key.expires_at <= clock.now() else "active"

    def save_model(self, request: HttpRequest, obj: ApiKey, form: Any, change: bool) -> None:
        key, request.shown_once = services.create_api_key(
            obj.organization, obj.name, obj.scopes, expires_at=obj.expires_at, created_by=user_of(request),
            actor=request.actor,
        )  # fmt: skip
        obj.pk, obj.prefix, obj._state.adding = key.pk, key.prefix, False

    def response_add(
        self, request: HttpRequest, obj: ApiKey, post_url_continue: str | None = None
    ) -> HttpResponse:
        text = "Copy the key now. It isn't stored and won't be shown again."
        return shown_once(self, request, f"The API key “{obj.name}” was created", text, request.shown_once)

    @admin.action(
        description="Revoke: the keys stop working immediately. This can't be undone.", permissions=["act"]
    )
    def revoke(self, request: HttpRequest, queryset: models.QuerySet) -> None:
        for key in queryset:
            self._revoke(request, key)
        messages.success(request, "The keys were revoked and no longer work.")

    @action(
        description="Revoke",
        permissions=["act"],
        dialog={
            "title": "Revoke this key?",
            "description": "The key stops working immediately. This can't be undone.",
        },
    )
    def revoke_this(self, request: HttpRequest, form: Any, object_id: str) -> HttpResponse:
        self._revoke(request, self.get_object(request, object_id))
        return self.back_to(object_id)

    def _revoke(self, request: HttpRequest, key: ApiKey) -> None:
        services.revoke_api_key(key.pk, actor=request.actor)
        self.log_change(request, key, "Revoked.")


def _days(days: int) -> str:
    return f"{days} days" if days else "forever"


class RetentionRuleForm(OwnedForm):
    """Offer the kinds of data that slices registered, each with its default."""

    what = forms.ChoiceField(label="Data", widget=UnfoldAdminSelectWidget)

    class Meta:
        model = RetentionRule
        fields = ["what", "days"]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if "what" in self.fields:
            field: Any = self.fields["what"]
            field.choices = [
                (name, f"{kept.label} ({_days(retention.default_days(name))} by default)")
                for name, kept in retention.kept.items()
            ]


@admin.register(RetentionRule)
class RetentionRuleAdmin(OwnedAdmin):
    """Administer retention rules. Data without a rule follows the installation's default."""

    subject = "retention"
    form = RetentionRuleForm
    list_display = ["shown", "days", "in_effect"]
    fields = ["what", "days"]

    @display(description="data", ordering="what")
    def shown(self, rule: RetentionRule) -> str:
        return retention.kept[rule.what].label if rule.what in retention.kept else rule.what

    @display(description="in effect")
    def in_effect(self, rule: RetentionRule) -> str:
        """Return the effective period: no rule goes below the installation's minimum."""
        return _days(retention.effective_days(rule.what, rule.days)) if rule.what in retention.kept else "—"

    def save_model(self, request: HttpRequest, obj: RetentionRule, form: Any, change: bool) -> None:
        with transaction.atomic():
            obj.save()
            self._append_event(request, obj, "changed")

    def delete_model(self, request: HttpRequest, obj: RetentionRule) -> None:
        with transaction.atomic():
            self._append_event(request, obj, "removed")
            obj.delete()

    def delete_queryset(self, request: HttpRequest, queryset: models.QuerySet) -> None:
        for rule in queryset:
            self.delete_model(request, rule)

    def _append_event(self, request: HttpRequest, rule: RetentionRule, verb: str) -> None:
        events.append(
            rule.organization_id, f"retention.{verb}", rule.pk, actor=request.actor, what=rule.what, days=rule.days
        )


def shown_once(model_admin: OwnedAdmin, request: HttpRequest, title: str, text: str, secret: str) -> HttpResponse:
    """Render a page that shows a secret once.

    The response answers the request that created the secret, so the secret enters no cookie, session or log.
    """
    context = {
        **model_admin.admin_site.each_context(request),
        "opts": model_admin.opts,
        "title": title,
        "text": text,
        "secret": secret,
    }
    return TemplateResponse(request, "shown_once.html", context, headers={"Cache-Control": "no-store"})
