"""Handle technicians' texts and call-backs (the jobs side of telephony's inbound handlers)."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import datetime, timedelta

from django.db.models import QuerySet

from dispatch.core import clock
from dispatch.core.api.problems import Conflict
from dispatch.core.events import Actor
from dispatch.core.languages import gettext, translated
from dispatch.jobs import policies, signed_links
from dispatch.jobs.channels import menu
from dispatch.jobs.channels.voice import prompt_context, result_sentences
from dispatch.jobs.models import JobText, Offer
from dispatch.jobs.rules import phrases
from dispatch.jobs.rules.menu import GOODBYE, NO_MORE_JOBS, MenuState, Page, no_jobs
from dispatch.jobs.rules.on_the_way import MAX_LATE_MINUTES, read_on_the_way
from dispatch.jobs.services import Answer, AnswerChannel, answer_offer, report_late, sms, threads
from dispatch.jobs.services.answers import offer_state
from dispatch.technicians import services as technicians
from dispatch.technicians.models import Technician
from dispatch.technicians.rules import MAX_PIN_LENGTH
from dispatch.telephony import handlers
from dispatch.telephony import services as telephony
from dispatch.telephony.handlers import VoicePrompt
from dispatch.telephony.models import InboundCall, Text
from dispatch.telephony.speech import speaking, speech_for

# How long after an offer a late answer still gets its result.
REMEMBERED = timedelta(hours=24)
# A caller hears the result of an offer that they missed, before the menu, for this long after the offer.
RESULT_SPOKEN = timedelta(minutes=30)
# Statuses of texts that the provider has not accepted, although it may have been asked to; and of lost ones.
NEVER_SENT = (Text.Status.CREATED, Text.Status.REJECTED, Text.Status.CANCELED, Text.Status.NOT_SENT)
NOT_DELIVERED = (Text.Status.UNDELIVERED, Text.Status.FAILED)


class OfferSmsHandler:
    """Handles texts of purpose `offer`. Their subject is an Offer."""

    def should_send(self, text: Text) -> bool:
        """Return True while the offer can be answered, and the phone is the technician's."""
        live = Offer.objects.filter(pk=text.subject_id or 0, status="pending", expires_at__gt=clock.now())
        return live.filter(technician__phone=str(text.to_phone)).exists()

    def on_status_change(self, text: Text) -> None:
        """Do nothing: the offer also goes by phone, so no state depends on the text."""


class ThreadSmsHandler:
    """Handles texts of purpose `thread`: what dispatchers write to technicians. Their subject is a Job."""

    def should_send(self, text: Text) -> bool:
        """Return True, because a person wrote it, unless the technician has another phone now."""
        row = JobText.objects.filter(text=text).select_related("technician").first()
        return row is not None and sms.goes_to(text, row.technician)

    def on_status_change(self, text: Text) -> None:
        """Notify the dispatchers if the text will not arrive."""
        threads.report_delivery(text)


class TechnicianInboundHandler:
    """Handles texts and calls from technicians of the organization that owns the number."""

    def on_sms(self, text: Text) -> str | None:
        """Apply a technician's text: 1 or 2 to the last offer texted to them, "OMW 20" or "late 20" to their job.

        Anything else goes to the dispatchers. A newer offer that was not texted yet is never answered this way,
        because the technician doesn't know it. Return the reply; None if the text was not handled, or "" for no
        reply.
        """
        if (technician := _technician(text.organization_id, text.from_phone)) is None:
            return None
        with _speaking_to(technician):
            return _answer(text, technician)

    def on_stop(self, text: Text) -> None:
        """Alert the dispatchers: a technician who texts "cancel" may not come."""
        if (technician := _technician(text.organization_id, text.from_phone)) is not None:
            threads.receive_opt_out(text, technician)

    def on_help(self, text: Text) -> str | None:
        if (technician := _technician(text.organization_id, text.from_phone)) is None:
            return None
        with _speaking_to(technician):
            return phrases.help_text(technician.organization.name, signed_links.technician_url(technician))

    def on_call(self, call: InboundCall) -> VoicePrompt | None:
        """Return the prompt for the live offer, the last acceptable one, the open jobs, or the last result."""
        if (technician := _technician(call.organization_id, call.from_phone)) is None:
            return None
        with _speaking_to(technician):
            return _greet(call, technician)

    def on_key(self, call: InboundCall, key: str, *, arrived_at: datetime, state: str = "") -> VoicePrompt:
        page = MenuState.parse(state)
        offer = _offer_of(call) if page is None else None
        technician = offer.technician if offer else _technician(call.organization_id, call.from_phone)
        with _speaking_in(call, technician):
            if offer is not None:
                return _apply_key(call, offer, key, arrived_at)
            if technician is None or page is None:
                return VoicePrompt(translated(GOODBYE))
            return menu.apply_key(call, technician, page, key)

    def on_digits(
        self, call: InboundCall, digits: str, *, state: str = "", is_repeated: bool = False
    ) -> VoicePrompt:
        """Record the minutes of a delay, or check the PIN and, if it is right, go on with the customer's data."""
        page = MenuState.parse(state)
        offer = _offer_of(call) if page is None else None
        technician = offer.technician if offer else _technician(call.organization_id, call.from_phone)
        with _speaking_in(call, technician):
            if technician is None or not technician.is_active:
                return VoicePrompt(translated(GOODBYE))
            return _apply_digits(call, technician, offer, digits, state, is_repeated=is_repeated)


def _answer(text: Text, technician: Technician) -> str | None:
    """Apply the text and return the reply in the active language; None if it is not for this purpose."""
    if (reply := _on_the_way(text, technician)) is not None:
        return reply
    key = phrases.key_in(text.body)
    last = _last_offer_text(text)
    offer = Offer.objects.filter(pk=last.subject_id or 0, technician=technician).first() if last else None
    if offer is not None and key and not _is_ambiguous(text):
        answer = answer_offer(offer.pk, None, key, by=AnswerChannel.TEXT, arrived_at=text.created_at)
        return gettext(phrases.TEXT_ANSWERS[answer])
    if (reply := _report_late(text, technician)) is not None:
        return reply
    is_recorded = threads.receive(text, technician)
    if offer is not None and offer_state(offer) is None:
        return gettext(phrases.ANSWER_WITH)
    if not is_recorded:
        return gettext(phrases.NOTHING_OFFERED) if key else None
    if phrases.word_of(text.body) in phrases.CONFIRMATIONS or not threads.needs_confirmation(text, technician):
        return ""
    return gettext(phrases.PASSED_ON)


def _last_offer_text(text: Text) -> Text | None:
    """Return the last offer that had been texted to the sender when this text arrived, or None.

    An offer whose text did not arrive is answered only if none has arrived.
    """
    sent = Text.objects.filter(
        organization_id=text.organization_id,
        purpose=Text.Purpose.OFFER,
        direction=Text.Direction.OUT,
        to_phone=text.from_phone,
        requested_at__gt=text.created_at - REMEMBERED,
        requested_at__lte=text.created_at,  # the text may be processed late
    )
    found = sent.exclude(status__in=NEVER_SENT).order_by("-requested_at")
    return found.exclude(status__in=NOT_DELIVERED).first() or found.first()


def _greet(call: InboundCall, technician: Technician) -> VoicePrompt:
    """Return the first prompt of a call from a technician, in the active language."""
    recent = list(_offers().filter(technician=technician, created_at__gt=clock.now() - REMEMBERED)[:20])
    live = (candidate for candidate in recent if candidate.status == Offer.Status.PENDING)
    late = (candidate for candidate in recent if offer_state(candidate) is None)
    offer = next(live, None) or next(late, None)
    if offer is None and (prompt := menu.open_menu(call, technician, *_missed_result(recent))) is not None:
        return prompt
    if offer is None and (not recent or recent[0].status == Offer.Status.ACCEPTED):  # that job is over
        return VoicePrompt(no_jobs(technician.name))
    offer = offer or recent[0]
    call.subject_id = offer.pk
    return _prompt(offer, call)


def _apply_key(call: InboundCall, offer: Offer, key: str, arrived_at: datetime) -> VoicePrompt:
    """Apply a key that is pressed after the prompt of an offer."""
    if key == phrases.MENU_KEY and offer.technician.is_active:
        return menu.open_menu(call, offer.technician) or _prompt(offer, call)
    if key == phrases.PIN_KEY:
        return VoicePrompt(translated(phrases.ENTER_PIN), keys="0123456789", digits=MAX_PIN_LENGTH)
    if key not in (phrases.ACCEPT_KEY, phrases.DECLINE_KEY):
        return _prompt(offer, call)
    answer = answer_offer(offer.pk, None, key, by=AnswerChannel.CALL_BACK, arrived_at=arrived_at)
    if answer is not Answer.ACCEPTED:
        return VoicePrompt(result_sentences(answer))
    return _accepted_prompt(offer, call, phrases.THE_JOB_IS_YOURS)


def _apply_digits(
    call: InboundCall, technician: Technician, offer: Offer | None, digits: str, state: str, *, is_repeated: bool
) -> VoicePrompt:
    """Apply a number: the minutes of a delay, or a PIN."""
    page = MenuState.parse(state)
    if page is not None and page.page is Page.LATE:
        return menu.apply_minutes(call, technician, page, digits)
    if page is not None and page.page is not Page.PIN:
        return menu.apply_key(call, technician, page, "")
    caller = call.caller_kind
    if technicians.check_pin(technician.pk, digits, caller=caller, is_repeated=is_repeated):
        call.verified_at = clock.now()
        call.save(update_fields=["verified_at"])
        if offer is not None:
            return _prompt(offer, call)
        return menu.open_menu(call, technician) or VoicePrompt(translated(NO_MORE_JOBS))
    technician.refresh_from_db()
    if technicians.is_pin_locked(technician, caller):
        return VoicePrompt(translated(phrases.PIN_LOCKED))
    said = translated((phrases.WRONG_PIN, *phrases.ENTER_PIN))
    return VoicePrompt(said, keys="0123456789", digits=MAX_PIN_LENGTH, state=state)


def _report_late(text: Text, technician: Technician) -> str | None:
    """Record "late 20" for the technician's only open job that is not started. Return None for any other text.

    A text that is processed twice is recorded once.
    """
    minutes = phrases.late_minutes_in(text.body)
    if minutes is None or not 1 <= minutes <= MAX_LATE_MINUTES:
        return None
    jobs = [job for job in menu.open_jobs(technician) if job.started_at is None]
    if len(jobs) != 1:
        return None  # the dispatchers see which job it may be about
    (job,) = jobs
    reported_at = job.late_reported_at
    if job.late_minutes != minutes or reported_at is None or reported_at < text.created_at:
        actor = Actor("technician", technician.pk, technician.name)
        try:
            report_late(job.pk, minutes, actor=actor, version=job.version, by="text")
        except Conflict:
            return None
    return phrases.late_reply(minutes)


def _missed_result(recent: Sequence[Offer]) -> tuple[str, ...]:
    """Return the result of the offer that the caller has just missed, as an opening of the menu."""
    if not recent or recent[0].created_at < clock.now() - RESULT_SPOKEN:
        return ()
    result = offer_state(recent[0])
    if result is None or recent[0].status not in (Offer.Status.TIMED_OUT, Offer.Status.FAILED):
        return ()
    return result_sentences(result)[:1]


def _on_the_way(text: Text, technician: Technician) -> str | None:
    """Apply "on my way" and return the reply; None if the text says something else, or they have no such job."""
    said = read_on_the_way(text.body)
    if said is None:
        return None
    if not said.is_possible:
        threads.receive(text, technician)
        return gettext(phrases.WRONG_ETA)
    try:
        return threads.receive_on_the_way(text, technician, said.minutes)
    except Conflict:  # the job changed meanwhile
        return None


def _is_ambiguous(text: Text) -> bool:
    """Return whether a "yes" or "OK" may answer another text than the offer.

    It may if we have also sent the technician something else since their last text, such as the address of a job.
    """
    if phrases.word_of(text.body) not in phrases.AMBIGUOUS:
        return False
    texts = Text.objects.filter(organization_id=text.organization_id)
    earlier = texts.filter(direction=Text.Direction.IN, from_phone=text.from_phone, pk__lt=text.pk)
    last = earlier.order_by("-pk").values_list("created_at", flat=True).first()
    since = max(text.created_at - REMEMBERED, last) if last else text.created_at - REMEMBERED
    sent = texts.filter(
        direction=Text.Direction.OUT,
        to_phone=text.from_phone,
        requested_at__gt=since,
        requested_at__lte=text.created_at,
    ).exclude(status__in=NEVER_SENT)
    return sent.exclude(purpose__in=(Text.Purpose.OFFER, Text.Purpose.REPLY)).exists()


def _offers() -> QuerySet[Offer]:
    """Select offers with what their prompts need, newest first."""
    related = ("job__service_type", "job__organization", "technician__organization")
    return Offer.objects.select_related(*related).order_by("-id")


def _offer_of(call: InboundCall) -> Offer:
    return _offers().get(pk=call.subject_id or 0)


def _prompt(offer: Offer, call: InboundCall) -> VoicePrompt:
    """Return the prompt for the offer. A caller whose number may be forged hears nothing about the customer."""
    if not offer.technician.is_active:  # deactivated during the call
        return VoicePrompt(translated(GOODBYE))
    result = offer_state(offer)
    if result is Answer.ACCEPTED:
        return _accepted_prompt(offer, call, phrases.YOU_HAVE_THE_JOB)
    if result is not None:
        return VoicePrompt(result_sentences(result))
    context, keys = prompt_context(offer), phrases.OFFER_KEYS
    has_menu = bool(menu.open_jobs(offer.technician))
    if has_menu:
        keys += phrases.MENU_KEY
    if call.is_trusted:
        return VoicePrompt(phrases.offer_prompt(context, has_menu=has_menu), keys=keys)
    has_pin = bool(offer.technician.pin_hash)
    keys += phrases.PIN_KEY if has_pin else ""
    context = replace(context, address="")
    return VoicePrompt(phrases.offer_prompt(context, has_pin=has_pin, has_menu=has_menu), keys=keys)


def _accepted_prompt(offer: Offer, call: InboundCall, opening: str) -> VoicePrompt:
    if call.is_trusted:
        return VoicePrompt(phrases.accepted_prompt(prompt_context(offer)))
    technician, job = offer.technician, offer.job
    has_pin = bool(technician.pin_hash)
    is_texted = policies.frozen_policy(job).address_by_text and telephony.may_text(
        job.organization_id, technician.phone
    )
    sentences = phrases.accepted_without_details(opening, is_texted=is_texted, has_pin=has_pin)
    return VoicePrompt(sentences, keys=phrases.PIN_KEY if has_pin else "")


def _speaking_to(technician: Technician) -> AbstractContextManager[object]:
    return speaking(speech_for(technician.organization, technician))


def _speaking_in(call: InboundCall, technician: Technician | None) -> AbstractContextManager[object]:
    """Speak as the technician or, if there is none any longer, the organization has chosen."""
    return speaking(speech_for(call.organization, technician))


def _technician(organization_id: int, phone: str) -> Technician | None:
    technicians = Technician.objects.of(organization_id).filter(phone=phone, is_active=True)
    technician: Technician | None = technicians.select_related("organization").first()
    return technician


def register() -> None:
    """Register the handlers with telephony."""
    handlers.register_texts(Text.Purpose.OFFER, OfferSmsHandler())
    handlers.register_texts(Text.Purpose.THREAD, ThreadSmsHandler())
    handlers.register_inbound("offer", TechnicianInboundHandler())
