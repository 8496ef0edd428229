"""Text and speak the codes by which users confirm their phones (`services.phone_confirmation`).

Registered with telephony's handlers for purpose `confirm`. The code is computed when it is sent.
"""

from __future__ import annotations

from dispatch.core import languages
from dispatch.core.languages import gettext as _
from dispatch.telephony import handlers
from dispatch.telephony.handlers import VoicePrompt
from dispatch.telephony.models import Call, Text
from dispatch.telephony.speech import speaking, speech_for
from notifications.models import PhoneConfirmation
from notifications.services import phone_confirmation


class PhoneCodeCalls:
    """Handler for calls of purpose `confirm`. Subject: a PhoneConfirmation; attempt: its code."""

    def on_answer(self, call: Call) -> VoicePrompt:
        """Speak the code three times, digit by digit. Say nothing of it if it has expired."""
        row = _load(call.subject_id)
        with speaking(speech_for(call.organization, language=row.user.language if row else "")):
            if row is None or not phone_confirmation.is_current(row, call.attempt):
                return VoicePrompt((_("This code is no longer valid. Goodbye."),))
            digits = ", ".join(phone_confirmation.code_of(row, call.attempt))
            greeting = _("This is {organization}. You asked for a code to confirm your phone.")
            said = _("Your code is: {digits}.").format(digits=digits)
            return VoicePrompt((greeting.format(organization=call.organization.name), said, said, said))

    def on_key(self, call: Call, key: str) -> VoicePrompt:
        """Repeat the code. The prompt asks for no key."""
        return self.on_answer(call)

    def on_status_change(self, call: Call) -> None:
        """Do nothing: the settings page reads the call."""


class PhoneCodeTexts:
    """Handler for texts of purpose `confirm`."""

    def should_send(self, text: Text) -> bool:
        """Return False if another code has replaced it, it has expired, or the phone was changed."""
        row = _load(text.subject_id or 0)
        return row is not None and phone_confirmation.is_current(row, text.attempt)

    def on_status_change(self, text: Text) -> None:
        """Do nothing: the settings page reads the text."""


def build_body(text: Text) -> str:
    """Return the text with its code."""
    row = _load(text.subject_id or 0)
    if row is None:
        return text.body
    with languages.override(row.user.language or row.organization.language):
        words = _("{organization}: {code} is your code to confirm this phone. Do not share it with anyone.")
        return words.format(organization=row.organization.name, code=phone_confirmation.code_of(row, text.attempt))


def _load(confirmation_id: int) -> PhoneConfirmation | None:
    row: PhoneConfirmation | None = (
        PhoneConfirmation.objects.select_related("user", "organization").filter(pk=confirmation_id).first()
    )
    return row


def register() -> None:
    """Register the handlers of codes with telephony."""
    handlers.register_calls(phone_confirmation.PURPOSE, PhoneCodeCalls())
    handlers.register_texts(phone_confirmation.PURPOSE, PhoneCodeTexts(), secret_body=build_body)
