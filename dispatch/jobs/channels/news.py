"""Handle the texts and calls that inform technicians of changes to their jobs."""

from __future__ import annotations

from contextlib import AbstractContextManager

from django.db.models import Q

from dispatch.core.languages import translated
from dispatch.jobs.models import Job, TechnicianNotice
from dispatch.jobs.rules import phrases
from dispatch.jobs.services import notice_delivery, notices, sms
from dispatch.telephony import handlers
from dispatch.telephony.handlers import VoicePrompt
from dispatch.telephony.models import Call, Text
from dispatch.telephony.speech import speaking, speech_for


class NewsCallHandler:
    """Handles calls of purpose `job_news`. Their subject is a TechnicianNotice."""

    def on_answer(self, call: Call) -> VoicePrompt:
        """Return the news and the key that confirms it."""
        notice = notice_delivery.load_spoken(call.subject_id)
        with _speaking_about(notice):
            said = notice_delivery.news_prompt(notice)
            if not said:
                return VoicePrompt(translated(phrases.NEWS_OVER))
            return VoicePrompt(said, keys=phrases.NEWS_KEYS)

    def on_key(self, call: Call, key: str) -> VoicePrompt:
        """Confirm the news if the key is 1. Any other key repeats it."""
        if key != notice_delivery.CONFIRM_KEY:
            return self.on_answer(call)
        notice_delivery.advance_notice(call.subject_id)
        with _speaking_about(notice_delivery.load_spoken(call.subject_id)):
            return VoicePrompt(translated(phrases.NEWS_CONFIRMED))

    def on_status_change(self, call: Call) -> None:
        """Call again later, or alert dispatchers, if the call ended without a confirmation."""
        notice_delivery.advance_notice(call.subject_id)


class NewsSmsHandler:
    """Handles texts of purposes `job_news` and `job`, which a notice may refer to."""

    def should_send(self, text: Text) -> bool:
        """Return False for news that something newer has replaced, or that waits for the end of quiet hours.

        Neither does a text go to a phone that is no longer the technician's.
        """
        about = TechnicianNotice.objects.filter(text_id=text.pk).select_related("technician")
        if about.filter(Q(status=notices.Status.SUPERSEDED) | Q(deferred_until__isnull=False)).exists():
            return False
        subject: TechnicianNotice | Job | None = about.first()
        if subject is None and text.purpose == Text.Purpose.JOB:  # of a job that the technician accepted
            subject = Job.objects.filter(pk=text.subject_id or 0).select_related("technician").first()
        return subject is None or sms.goes_to(text, subject.technician)

    def on_status_change(self, text: Text) -> None:
        """Record that the text arrived, or call the technician because it cannot arrive.

        The address of a job of which they know is sent to their present phone.
        """
        for pk in TechnicianNotice.objects.filter(text_id=text.pk).values_list("pk", flat=True):
            notice_delivery.advance_notice(pk)
        if text.purpose == Text.Purpose.JOB and text.status == Text.Status.CANCELED:
            notice_delivery.send_canceled_address(text)


def _speaking_about(notice: TechnicianNotice) -> AbstractContextManager[object]:
    return speaking(speech_for(notice.job.organization, notice.technician))


def register() -> None:
    """Register the handlers with telephony."""
    handlers.register_calls(notices.PURPOSE, NewsCallHandler())
    for purpose in (Text.Purpose.JOB_NEWS, Text.Purpose.JOB):
        handlers.register_texts(purpose, NewsSmsHandler())
