"""Administer how long an organization's data is kept."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin
from django.db import transaction
from django.http import HttpRequest
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _
from unfold.decorators import display
from unfold.widgets import UnfoldAdminSelectWidget

from accounts.admin.base import OwnedAdmin, OwnedForm
from accounts.models import RetentionRule
from dispatch.core import events
from dispatch.core.labels import label, translate_label
from dispatch.core.privacy import retention


def _days(days: int) -> str:
    return ngettext("{days} day", "{days} days", days).format(days=days) if days else gettext("forever")


class RetentionRuleForm(OwnedForm):
    """Offer the kinds of data that slices registered, each with its default."""

    what = forms.ChoiceField(label=_("Data"), widget=UnfoldAdminSelectWidget)

    class Meta:
        model = RetentionRule
        fields = ["what", "days"]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if "what" in self.fields:
            field: Any = self.fields["what"]
            field.choices = [
                (
                    name,
                    gettext("{data} ({days} by default)").format(
                        data=translate_label(kept.label), days=_days(retention.default_days(name))
                    ),
                )
                for name, kept in retention.kept.items()
            ]


@admin.register(RetentionRule)
class RetentionRuleAdmin(OwnedAdmin):
    """Administer retention rules. Data without a rule follows the installation's default."""

    subject = "retention"
    form = RetentionRuleForm
    list_display = ["shown", "days", "in_effect"]
    fields = ["what", "days"]

    @display(description=label("data"), ordering="what")
    def shown(self, rule: RetentionRule) -> str:
        return translate_label(retention.kept[rule.what].label) if rule.what in retention.kept else rule.what

    @display(description=label("in effect"))
    def in_effect(self, rule: RetentionRule) -> str:
        """Return the effective period: no rule goes below the installation's minimum."""
        return _days(retention.effective_days(rule.what, rule.days)) if rule.what in retention.kept else "—"

    def save_model(self, request: HttpRequest, obj: RetentionRule, form: Any, change: bool) -> None:
        with transaction.atomic():
            super().save_model(request, obj, form, change)
            obj.refresh_from_db()
            self._append_event(request, obj, "changed")

    def delete_model(self, request: HttpRequest, obj: RetentionRule) -> None:
        with transaction.atomic():
            self._append_event(request, obj, "removed")
            if not obj.delete()[0]:
                raise RetentionRule.DoesNotExist

    def _append_event(self, request: HttpRequest, rule: RetentionRule, verb: str) -> None:
        events.append(
            rule.organization_id, f"retention.{verb}", rule.pk, actor=request.actor, what=rule.what, days=rule.days
        )
