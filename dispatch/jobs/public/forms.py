"""Read the customer's request form, make a submission from it, and read the form that corrects a request."""

from __future__ import annotations

from typing import Any

from django import forms
from phonenumber_field.formfields import PhoneNumberField

from accounts.models import Organization
from accounts.phone_inputs import use_region
from dispatch.core import zips
from dispatch.core.languages import active, mark
from dispatch.core.languages import gettext as _
from dispatch.jobs.models import Job, Priority, PublicForm, ServiceType
from dispatch.jobs.rules.duplicates import on_one_line

URGENCY = (
    (str(Priority.NORMAL.value), mark("It can wait a day or two")),
    (str(Priority.URGENT.value), mark("Today")),
    (str(Priority.EMERGENCY.value), mark("Emergency: damage or danger right now")),
)


class CustomerForm(forms.Form):
    """The request form of one organization, in the active language.

    In the US, an unknown ZIP code is an error: it can't be located.
    """

    service = forms.ModelChoiceField(
        queryset=ServiceType.objects.none(),
        to_field_name="code",
        label=mark("What do you need help with?"),
        empty_label=mark("Choose"),
    )
    urgency = forms.ChoiceField(
        choices=URGENCY,
        initial=str(Priority.NORMAL.value),
        widget=forms.RadioSelect,
        label=mark("How urgent is it?"),
    )
    name = forms.CharField(
        max_length=120, label=mark("Your name"), widget=forms.TextInput(attrs={"autocomplete": "name"})
    )
    phone = PhoneNumberField()
    street = forms.CharField(
        max_length=160,
        label=mark("Street address"),
        widget=forms.TextInput(attrs={"autocomplete": "street-address"}),
    )
    city = forms.CharField(
        max_length=80, label=mark("City"), widget=forms.TextInput(attrs={"autocomplete": "address-level2"})
    )
    postcode = forms.CharField(
        max_length=12, label=mark("ZIP code"), widget=forms.TextInput(attrs={"autocomplete": "postal-code"})
    )
    notes = forms.CharField(
        max_length=2000,
        required=False,
        label=mark("Anything we should know?"),
        widget=forms.Textarea(attrs={"rows": 4}),
    )

    def __init__(self, *args: Any, organization: Organization, public: PublicForm, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.organization = organization
        offered: Any = self.fields["service"]
        offered.queryset = ServiceType.objects.of(organization).filter(is_active=True)
        self.has_services = offered.queryset.exists()
        phone = self.fields["phone"] = PhoneNumberField(
            label=mark("Phone"),
            help_text=_("Your technician will call this number."),
            widget=forms.TextInput(attrs={"type": "tel", "autocomplete": "tel"}),
        )
        use_region(phone, organization.default_region)
        offered.empty_label = _(offered.empty_label)
        urgency: Any = self.fields["urgency"]
        urgency.choices = [(value, _(words)) for value, words in URGENCY]
        if not public.asks_urgency:
            del self.fields["urgency"]
        self._has_zips = organization.default_region == "US"
        if self._has_zips:
            self.fields["postcode"].widget.attrs["inputmode"] = "numeric"
        else:
            self.fields["postcode"].label = mark("Postcode")
        for field in self.fields.values():  # before anything is validated, which keeps the labels
            field.label = _(str(field.label))
        for name, field in self.fields.items():
            if name != "urgency":
                field.widget.attrs.setdefault("id", f"id_{name}")

    def clean_postcode(self) -> str:
        code: str = self.cleaned_data["postcode"].strip()
        if self._has_zips and zips.zip_position(code[:5]) is None:
            raise forms.ValidationError(_("Enter a valid ZIP code."))
        return code

    def submission(self) -> dict[str, Any]:
        """Return the form as `accept_submission` expects it."""
        data = self.cleaned_data
        return {
            "customer_name": data["name"],
            "customer_phone": data["phone"].as_e164,
            "service_type": data["service"],
            "priority": int(data.get("urgency") or Priority.NORMAL),
            "address": ", ".join(data[part].strip() for part in ("street", "city", "postcode")),
            "notes": data["notes"],
            "language": active(),
        }


class CorrectionForm(forms.Form):
    """The address and the phone of a request. An empty phone keeps the current one, which is not shown.

    The address may stay empty if the job was submitted without one.
    """

    address = forms.CharField(
        max_length=300,
        widget=forms.Textarea(attrs={"rows": 2, "autocomplete": "street-address"}),
    )
    phone = PhoneNumberField(required=False)

    def __init__(self, *args: Any, job: Job | None, organization: Organization, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["address"].label = _("Address")
        self.fields["address"].error_messages["required"] = _("Enter the address.")
        self.initial["address"] = job.address if job else ""
        self.fields["address"].required = bool(self.shown_address)
        end = str(job.customer_phone)[-2:] if job else ""
        phone = self.fields["phone"] = PhoneNumberField(
            required=False,
            label=_("New phone"),
            help_text=_("Leave empty to keep the number that ends in {end}.").format(end=end) if end else "",
            widget=forms.TextInput(attrs={"type": "tel", "autocomplete": "tel"}),
        )
        use_region(phone, organization.default_region)
        for name, field in self.fields.items():
            field.widget.attrs["id"] = f"id_{name}"

    def clean_address(self) -> str:
        """Return the address on one line."""
        return on_one_line(self.cleaned_data["address"])

    @property
    def shown_address(self) -> str:
        """What the page showed as the address before it was edited."""
        return str(self.data.get("shown_address", self.initial["address"]))

    @property
    def new_address(self) -> str:
        """The address of the valid form; "" if it is what the page showed, apart from line breaks and spaces.

        The job's may have been corrected since.
        """
        address: str = self.cleaned_data["address"]
        return "" if address == on_one_line(self.shown_address) else address
