"""Build the samples that preview an organization's and a technician's voice: an offer with a customer's number."""

from __future__ import annotations

from accounts.models import Organization
from dispatch.core.languages import gettext
from dispatch.jobs.rules import phrases
from dispatch.jobs.rules.phrases import PromptContext
from dispatch.technicians.models import Technician
from dispatch.telephony import voice_samples
from dispatch.telephony.handlers import VoicePrompt
from dispatch.telephony.speech import speaking, speech_for

_ADDRESS = "200 W Washington St, Phoenix, AZ 85003"
_PHONE = "+16025550123"
_DISTANCE_M = 5200


def sample_of_organization(organization_id: int) -> VoicePrompt:
    """Return an offer as the organization's technicians hear it."""
    return _sample(Organization.objects.get(pk=organization_id))


def sample_of_technician(technician_id: int) -> VoicePrompt:
    """Return an offer as the technician hears it."""
    technician = Technician.objects.select_related("organization").get(pk=technician_id)
    return _sample(technician.organization, technician)


def _sample(organization: Organization, technician: Technician | None = None) -> VoicePrompt:
    with speaking(speech_for(organization, technician)):
        context = PromptContext(
            service=gettext("Water heater repair"),
            priority=2,
            address=_ADDRESS,
            distance_m=_DISTANCE_M,
            unit=organization.distance_unit,
            customer_name="Dana Whitfield",
            customer_phone=_PHONE,
            region=organization.default_region,
        )
        opening = gettext("This is a preview. No job is waiting.")
        return VoicePrompt((opening, *phrases.offer_prompt(context)[1:-1], *phrases.job_sentences(context)[-2:]))


def register() -> None:
    """Register the samples with telephony."""
    voice_samples.register("organization", sample_of_organization)
    voice_samples.register("technician", sample_of_technician)
