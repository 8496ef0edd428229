"""/admin/personal-data/: export or erase an organization's data about one person."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from django import forms
from django.contrib import admin
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.template.response import TemplateResponse
from django.utils.translation import gettext_lazy
from unfold.widgets import UnfoldAdminEmailInputWidget, UnfoldAdminTextInputWidget

from accounts import tenancy
from dispatch.console.privacy import lookup
from dispatch.core.languages import gettext as _
from dispatch.core.privacy import personal_data

CONFIRMATION = "erase"


class PersonForm(forms.Form):
    """Form to choose a person. Exactly one of the first four fields is required."""

    phone = forms.CharField(
        required=False,
        label=gettext_lazy("Phone"),
        max_length=32,
        widget=UnfoldAdminTextInputWidget,
        help_text=gettext_lazy("Phone number of a customer or lead."),
    )
    email = forms.EmailField(
        required=False,
        label=gettext_lazy("Email"),
        widget=UnfoldAdminEmailInputWidget,
        help_text=gettext_lazy("Email of a customer."),
    )
    technician = forms.CharField(
        required=False,
        max_length=18,
        label=gettext_lazy("Technician"),
        widget=UnfoldAdminTextInputWidget,
        help_text=gettext_lazy("The technician's ID."),
    )
    user = forms.EmailField(
        required=False,
        label=gettext_lazy("Member"),
        widget=UnfoldAdminEmailInputWidget,
        help_text=gettext_lazy("Email of a member."),
    )
    confirmation = forms.CharField(
        required=False, max_length=10, widget=UnfoldAdminTextInputWidget,
        label=gettext_lazy("Confirmation"), help_text=gettext_lazy('To erase, type "erase" here.'),
    )  # fmt: skip


def page(request: Any) -> HttpResponseBase:
    """Show the form (GET); export as a download, or erase (POST)."""
    organization = tenancy.administered_organization(request)
    form = PersonForm(request.POST or None)
    shown: dict[str, Any] = {"organization": organization, "form": form}
    if request.method == "POST" and form.is_valid():
        typed = dict(form.cleaned_data)
        confirmed = typed.pop("confirmation").strip().lower() == CONFIRMATION
        try:
            person = lookup.find_person(organization, **typed)
            if request.POST.get("what") == "export":
                return _download(person, request)
            if confirmed:
                shown |= {
                    "counts": personal_data.erase_person(person, actor=tenancy.actor_of(request.user)),
                    "done": True,
                }
            else:
                form.add_error("confirmation", _("Type {word} to confirm.").format(word=CONFIRMATION))
        except (lookup.AmbiguousPerson, personal_data.StillNeeded) as error:
            form.add_error(None, str(error))
    return _render_page(request, shown)


def _download(person: personal_data.DataSubject, request: Any) -> HttpResponse:
    person = replace(person, is_whole_account=request.user.is_superuser)
    data = personal_data.export_person(person, actor=tenancy.actor_of(request.user))
    answer = HttpResponse(json.dumps(data, indent=2), content_type="application/json")
    answer["Content-Disposition"] = 'attachment; filename="personal-data.json"'
    answer["Cache-Control"] = "no-store"
    return answer


def _render_page(request: HttpRequest, context: dict[str, Any]) -> HttpResponseBase:
    context = {**admin.site.each_context(request), "title": _("Personal data"), **context}
    return TemplateResponse(request, "admin/personal_data.html", context, headers={"Cache-Control": "no-store"})
