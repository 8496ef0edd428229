"""Preview a voice in the admin: show the sample's sentences and document, and call the admin's own phone."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _
from unfold.decorators import action

from accounts.admin.base import OwnedAdmin
from accounts.admin.extensions import extend_admin
from accounts.admin.organizations import OrganizationAdmin
from accounts.models import Organization
from dispatch.core.stored_texts import mark_stored
from dispatch.telephony import number_check_calls, providers, voice_previews, voice_samples
from dispatch.telephony.admin.refusals import describe_refusal
from dispatch.telephony.errors import CallNotAllowed, NoLine, PhoneBusy
from dispatch.telephony.handlers import AgentConnection, VoicePrompt
from dispatch.telephony.providers.base import AgentUrls

_NO_NUMBER = _("No number of this organization can place calls. Add one, or resume a paused one.")
_NO_PHONE = _("Your account has no phone number. Enter it in your notification settings.")

PLAYED = mark_stored("Played a preview of the voice (call {id}).")


class VoicePreviewMixin(OwnedAdmin):
    """Mixin of the admin of a row with a language and voice. `preview_kind` names its sample."""

    preview_kind = ""
    actions_detail = ["preview_voice"]
    # By GET it shows the page; the call takes a POST.
    read_only_actions: tuple[str, ...] = ("preview_voice",)

    @action(description=_("Play a preview"), permissions=["change"], url_path="voice-preview")
    def preview_voice(self, request: HttpRequest, object_id: str) -> HttpResponse:
        row: Any = self.get_object(request, object_id)
        organization = row if isinstance(row, Organization) else row.organization
        prompt = voice_samples.build(self.preview_kind, row.pk)
        number = voice_previews.find_number(organization.pk, getattr(row, "pool_id", None))
        phone = getattr(request.user, "phone", "")
        problem = _NO_NUMBER if number is None else "" if phone else _NO_PHONE
        if request.method == "POST" and number is not None and not problem:
            self._call(request, row, organization, number)
            return HttpResponseRedirect(request.path, status=303)
        context = {
            **self.admin_site.each_context(request),
            "title": gettext("Preview of the voice: {row}").format(row=row),
            "opts": self.model._meta,
            "media": self.media,
            "row": row,
            "speech": prompt.speech,
            "sentences": prompt.say,
            "recording": getattr(prompt, "play", "").removeprefix(settings.PUBLIC_BASE_URL),
            "document": _document(prompt, number),
            "number": number,
            "phone": phone,
            "problem": problem,
            "most": voice_previews.MOST_PER_HOUR,
        }
        return TemplateResponse(request, "admin/voice_preview.html", context)

    def _call(self, request: Any, row: Any, organization: Organization, number: Any) -> None:
        phone = request.user.phone
        try:
            call = voice_previews.place_preview(
                number, organization, self.preview_kind, row.pk, phone.as_e164, actor=request.actor
            )
        except voice_previews.TooManyPreviews:
            text = gettext("Your phone had {most} test calls within an hour. Try again later.").format(
                most=voice_previews.MOST_PER_HOUR
            )
            messages.error(request, gettext("No call was placed: {reason}").format(reason=text))
        except (NoLine, PhoneBusy, CallNotAllowed, number_check_calls.NumberPaused) as error:
            messages.error(
                request, gettext("No call was placed: {reason}.").format(reason=describe_refusal(error))
            )
        else:
            self.log_change(request, row, PLAYED.format(id=call.pk))
            messages.success(request, gettext("Calling {phone}.").format(phone=phone.as_national))


def _document(prompt: VoicePrompt | AgentConnection, number: Any) -> str:
    """Return the provider's document, one <Say> per line; empty without a number."""
    if number is None:
        return ""
    try:
        client = providers.for_account(number.account)
        if isinstance(prompt, AgentConnection):
            body, _type = client.render_agent(prompt, "", AgentUrls("", ""))
        else:
            body, _type = client.render(prompt, "")
    except providers.UnknownProvider:
        return ""
    document = body.decode()
    for verb in ("<Say", "<Play", "<Hangup", "<Connect", "<Parameter"):
        document = document.replace(verb, f"\n{verb}")
    return document


@extend_admin(Organization)
class OrganizationWithPreviewAdmin(VoicePreviewMixin, OrganizationAdmin):
    """Administer organizations, with a preview of their voice."""

    preview_kind = "organization"
