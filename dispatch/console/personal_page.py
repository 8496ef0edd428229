"""/admin/personal-data/: an Admin hands out or erases what their organization keeps of one person."""

from __future__ import annotations

import json
from typing import Any

from django import forms
from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.template.response import TemplateResponse
from unfold.widgets import UnfoldAdminEmailInputWidget, UnfoldAdminTextInputWidget

from accounts import current
from accounts.models import Membership
from dispatch.console import persons
from dispatch.core import personal

CONFIRMATION = "erase"


class PersonForm(forms.Form):
    """Exactly one of the first four."""

    phone = forms.CharField(
        required=False, max_length=32, widget=UnfoldAdminTextInputWidget, help_text="Of a customer or a lead."
    )
    email = forms.EmailField(
        required=False, label="E-mail", widget=UnfoldAdminEmailInputWidget, help_text="Of a customer."
    )
    technician = forms.CharField(
        required=False, max_length=18, widget=UnfoldAdminTextInputWidget, help_text="The technician's id."
    )
    user = forms.EmailField(
        required=False, label="Member", widget=UnfoldAdminEmailInputWidget, help_text="Their e-mail."
    )
    confirmation = forms.CharField(
        required=False, max_length=10, widget=UnfoldAdminTextInputWidget,
        help_text=f"To erase, type {CONFIRMATION} here.",
    )  # fmt: skip


def page(request: Any) -> HttpResponseBase:
    """GET shows the form; POST exports (a download) or erases."""
    try:
        found = current.of_person(request.user, remembered_id=request.session.get(current.SESSION_KEY))
    except current.NoOrganization as error:
        raise PermissionDenied(str(error)) from None
    if found.role != Membership.Role.ADMIN:
        raise PermissionDenied
    form = PersonForm(request.POST or None)
    shown: dict[str, Any] = {"organization": found.organization, "form": form}
    if request.method == "POST" and form.is_valid():
        typed = dict(form.cleaned_data)
        confirmed = typed.pop("confirmation").strip().lower() == CONFIRMATION
        try:
            person = persons.find(found.organization, **typed)
            if request.POST.get("what") == "export":
                return _download(person, request)
            if confirmed:
                shown |= {"counts": personal.erase(person, actor=current.actor_of(request.user)), "done": True}
            else:
                form.add_error("confirmation", f"Type {CONFIRMATION} to show that it is meant.")
        except (persons.Unclear, personal.StillNeeded) as error:
            form.add_error(None, str(error))
    return _shown(request, shown)


def _download(person: personal.Person, request: Any) -> HttpResponse:
    data = personal.export(person, actor=current.actor_of(request.user))
    answer = HttpResponse(json.dumps(data, indent=2), content_type="application/json")
    answer["Content-Disposition"] = 'attachment; filename="personal-data.json"'
    answer["Cache-Control"] = "no-store"
    return answer


def _shown(request: HttpRequest, context: dict[str, Any]) -> HttpResponseBase:
    context = {**admin.site.each_context(request), "title": "Personal data", **context}
    return TemplateResponse(request, "admin/personal_data.html", context, headers={"Cache-Control": "no-store"})
