"""Handle texts to customers about their jobs, and the customers' replies."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

from dispatch.core import clock, languages
from dispatch.jobs import signed_links
from dispatch.jobs.models import Job
from dispatch.jobs.rules import customer_phrases
from dispatch.jobs.services import customer_texts
from dispatch.telephony import handlers
from dispatch.telephony.handlers import VoicePrompt
from dispatch.telephony.models import InboundCall, Text

# A customer who texts again within this time gets no further answer.
ANSWER_AGAIN = timedelta(hours=1)


class CustomerSmsHandler:
    """Handles texts of purpose `customer`. Their subject is a CustomerText."""

    def should_send(self, text: Text) -> bool:
        """Return False for a text that is no longer true or wanted."""
        return customer_texts.is_current(text)

    def on_status_change(self, text: Text) -> None:
        """Record on the job that the text will not arrive."""
        customer_texts.report_delivery(text)


class CustomerInboundHandler:
    """Handles texts from customers who were texted about a job. It does not handle calls."""

    def on_sms(self, text: Text) -> str | None:
        """Pass the text to the dispatchers, and return the link to the customer's page once an hour."""
        job = _job_of(text)
        if job is None:
            return None
        customer_texts.receive(text, job)
        recent = Text.objects.filter(
            organization_id=text.organization_id, purpose=Text.Purpose.REPLY, to_phone=text.from_phone
        )
        if recent.filter(created_at__gt=clock.now() - ANSWER_AGAIN).exists():
            return ""
        return _describe_page(job, customer_phrases.page_text)

    def on_help(self, text: Text) -> str | None:
        """Return the link to the customer's page, or None if the sender is no customer of a recent job."""
        job = _job_of(text)
        return None if job is None else _describe_page(job, customer_phrases.help_text)

    def on_stop(self, text: Text) -> None:
        """Notify the dispatchers: a customer who texts "cancel" may want to cancel the request."""
        job = _job_of(text)
        if job is not None and job.ended_at is None:
            customer_texts.receive(text, job, opted_out=True)

    def on_call(self, call: InboundCall) -> VoicePrompt | None:
        """Return None: customers' calls have no prompt."""
        return None

    def on_key(self, call: InboundCall, key: str, *, arrived_at: datetime, state: str = "") -> VoicePrompt:
        """Return an empty prompt: customers' calls have no keys."""
        return VoicePrompt(())

    def on_digits(
        self, call: InboundCall, digits: str, *, state: str = "", is_repeated: bool = False
    ) -> VoicePrompt:
        """Return an empty prompt: customers are not asked for digits."""
        return VoicePrompt(())


def _job_of(text: Text) -> Job | None:
    return customer_texts.job_of_customer(text.organization_id, text.from_phone)


def _describe_page(job: Job, phrase: Callable[[str, str], str]) -> str:
    url = signed_links.request_url(job.submission_id)
    with languages.override(job.submission.customer_language):
        return phrase(customer_texts.sender_name(job), url)


def register() -> None:
    """Register the handlers with telephony."""
    handlers.register_texts(customer_texts.PURPOSE, CustomerSmsHandler())
    handlers.register_inbound("customer", CustomerInboundHandler(), by_strangers=True)
