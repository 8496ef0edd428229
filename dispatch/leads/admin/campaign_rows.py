"""Edit the rows of a campaign: what its keys do, and what follows its calls."""

from __future__ import annotations

from django.core.exceptions import ValidationError

from accounts.admin.base import OwnedForm, OwnedInlineFormSet, OwnedStackedInline, OwnedTabularInline
from dispatch.leads.models import DispositionRule, KeyBranch, RetryRule
from dispatch.leads.rules.script import keys_problem, placeholder_problem, split_names


class KeyBranchForm(OwnedForm):
    """Check the variables in a branch's texts against those of its campaign."""

    class Meta:
        model = KeyBranch
        fields = [
            "key", "say", "action", "disposition", "phones", "introduction", "ring_s", "otherwise", "call_back_h",
            "text",
        ]  # fmt: skip


class KeyBranchFormSet(OwnedInlineFormSet):
    """Check that the keys differ from each other and from the opt-out key, and the variables of the texts."""

    def clean(self) -> None:
        super().clean()
        names = split_names(self.data.get("variables", ""))
        kept = [
            form for form in self.forms if form.cleaned_data.get("key") and not form.cleaned_data.get("DELETE")
        ]
        keys = [form.cleaned_data["key"] for form in kept]
        if problem := keys_problem(keys, self.data.get("opt_out_key", "")):
            raise ValidationError(problem)
        for form in kept:
            for name in ("say", "introduction", "otherwise", "text"):
                if problem := placeholder_problem(form.cleaned_data.get(name) or "", names):
                    form.add_error(name, problem)


class KeyBranchInline(OwnedStackedInline):
    """The branches of a campaign's script, a form per key."""

    model = KeyBranch
    form = KeyBranchForm
    formset = KeyBranchFormSet
    extra = 0
    verbose_name_plural = "what pressed keys do"
    fields = [
        ("key", "action", "disposition"), "say", ("phones", "ring_s"), "introduction", "otherwise", "call_back_h",
        "text",
    ]  # fmt: skip


class DispositionRuleInline(OwnedTabularInline):
    """What follows the outcomes that were recorded for a campaign's leads."""

    model = DispositionRule
    verbose_name_plural = "after a recorded outcome"
    fields = ["disposition", "then", "delay_h"]


class RetryRuleInline(OwnedTabularInline):
    """The retry rules of a campaign."""

    model = RetryRule
    fields = ["outcome", "attempts", "delay_s", "factor", "longest_s", "jitter"]
