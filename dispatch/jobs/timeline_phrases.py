"""The sentences of a job's history in other languages than English: one for each kind of event.

English has more details (`timeline`). Each follows the actor's label.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from dispatch.core.languages import gettext, mark
from dispatch.core.stored_texts import translate_stored
from dispatch.jobs.reasons import translate_reason

PHRASES: Mapping[str, str] = {
    "submission.received": mark("received the form"),
    "job.created": mark("created the job"),
    "job.possible_duplicate": mark("flagged the job as a possible duplicate of job {of}"),
    "job.duplicate_merged": mark("merged job {duplicate} into this one"),
    "job.not_a_duplicate": mark("decided that this is no duplicate of job {of}"),
    "job.offering": mark("found {fit} eligible technicians of {considered}"),
    "job.trial_began": mark("resumed calling to try whether the phone provider works again"),
    "job.trial_failed": mark("returned the job to dispatchers: the phone provider still fails"),
    "job.provider_back": mark("resumed calling: the phone provider is available again"),
    "job.spend_resumed": mark("resumed calling: the daily spending cap allows it again"),
    "job.round": mark("started round {round} of {rounds}"),
    "job.skipped": mark("skipped {who}"),
    "job.waiting": mark("is waiting"),
    "job.pending": mark("handed the job to dispatchers"),
    "job.assigned": mark("assigned the job to {who}"),
    "job.dispatch_again": mark("dispatched the job again"),
    "job.called_next": mark("called the next technician now"),
    "job.extended": mark("gave {who} {seconds} more seconds"),
    "job.paused": mark("paused the job"),
    "job.resumed": mark("resumed the job"),
    "job.cannot_make_it": mark("recorded that {who} can't make it"),
    "job.text_received": mark("texted: “{body}”"),
    "job.text_sent": mark("texted {who}: “{body}”"),
    "job.text_failed": mark("could not deliver the text to {who}"),
    "job.texts_handled": mark("marked the texts as needing no reply"),
    "job.note_written": mark("wrote a note"),
    "job.note_deleted": mark("deleted a note"),
    "job.cancelled": mark("canceled the job"),
    "job.on_the_way": mark("recorded that {who} is on the way"),
    "job.customer_texted": mark("texted the customer"),
    "job.customer_text_failed": mark("could not text the customer"),
    "job.customer_replied": mark("texted: “{body}”"),
    "job.customer_opted_out": mark("texted “{body}”, and opted out of texts"),
    "job.started": mark("started the work"),
    "job.running_late": mark("recorded that {who} is running late {minutes} min"),
    "job.reopened": mark("reopened the job"),
    "job.pause_overdue": mark("reminded dispatchers: paused for {minutes} minutes"),
    "job.not_started": mark("reminded dispatchers: {who} has not started the work"),
    "job.not_completed": mark("reminded dispatchers: {who} has not completed the work"),
    "job.corrected": mark("corrected the job"),
    "job.completed": mark("completed the job"),
    "job.technician_notified": mark("notified {who} of the change"),
    "job.technician_unreached": mark("could not notify {who} of the change"),
    "job.technician_told": mark("informed {who} of the change"),
    "job.notice_superseded": mark("no longer needs to notify {who} of the change"),
    "job.notice_deferred": mark("will notify {who} when the quiet hours end"),
    "job.notice_dropped": mark("no longer needs to notify {who} of the change"),
    "job.claimed": mark("claimed the job"),
    "job.released": mark("released the job"),
    "job.alert_raised": mark("alerted dispatchers"),
    "job.alert_escalated": mark("escalated the alert"),
    "job.alert_reached_nobody": mark("found nobody to notify about the alert"),
    "job.alert_acknowledged": mark("acknowledged the alert"),
    "job.alert_returned": mark("raised the alert again, because nothing happened"),
    "job.alert_settled": mark("closed the alert"),
    "offer.made": mark("offered the job to {who} (attempt {attempt})"),
    "offer.ringing": mark("is calling {who}"),
    "offer.answered": mark("reached {who}"),
    "offer.missed": mark("could not reach {who} by phone"),
    "offer.accepted": mark("accepted the job"),
    "offer.declined": mark("declined the job"),
    "offer.timed_out": mark("stopped waiting for {who}"),
    "offer.failed": mark("could not reach {who}"),
    "offer.rescinded": mark("withdrew the offer to {who}"),
    "text.created": mark("prepared a text"),
    "text.requesting": mark("asked the phone provider to send the text"),
    "text.held_back": mark("asked Dispatch to wait before sending the text"),
    "text.rerouted": mark("chose the number {number} for the text"),
    "text.submitted": mark("accepted the text"),
    "text.sent": mark("reported the text as sent"),
    "text.delivered": mark("reported the text as delivered"),
    "text.undelivered": mark("could not deliver the text"),
    "text.failed": mark("could not send the text"),
    "text.rejected": mark("refused the text"),
    "text.canceled": mark("did not send the text"),
    "text.not_sent": mark("did not send the text"),
    "text.unknown": mark("could not confirm whether the text was sent"),
    "call.created": mark("prepared a call"),
    "call.requesting": mark("asked the phone provider to place the call"),
    "call.held_back": mark("asked Dispatch to wait before calling"),
    "call.cancel_requested": mark("asked the phone provider to hang up"),
    "call.submitted": mark("accepted the call"),
    "call.ringing": mark("reported that the phone is ringing"),
    "call.answered": mark("reported that the call was answered"),
    "call.key_pressed": mark("reported key {key}"),
    "call.completed": mark("reported the end of the call"),
    "call.signature_refused": mark("rejected a webhook with an invalid signature"),
    "call.busy": mark("reported busy"),
    "call.no_answer": mark("reported no answer"),
    "call.failed": mark("reported that the call failed"),
    "call.canceled": mark("ended the call before it was answered"),
    "call.rejected": mark("refused the call"),
    "call.unknown": mark("did not confirm the call: the phone may be ringing"),
    "call.not_placed": mark("never placed the call"),
    "call.lost": mark("never reported the end of the call"),
}
# What a technician reported themselves, by phone, text or link.
# Events whose `news_text` says of what the technician or the customer was to be notified.
ABOUT_NEWS = frozenset(
    {
        "job.technician_notified", "job.technician_unreached", "job.technician_told", "job.notice_superseded",
        "job.notice_deferred", "job.notice_dropped", "job.customer_texted", "job.customer_text_failed",
    }
)  # fmt: skip
WITH_CODES = frozenset({"text.undelivered", "text.failed", "call.failed", "call.rejected"})
WAITS = {
    "line": mark("for a free line"),
    "provider": mark("for the phone provider, which is not responding"),
    "account": mark("for the phone provider, which refuses our account"),
    "spend_cap": mark("the daily spending cap is reached, and an admin can raise it under Daily spending caps"),
    "quiet_hours": mark("until {until_words}, when the quiet hours end"),
    "window": mark("until {until_words}, in time for the arrival window"),
    "technician": mark("for technicians with another offer"),
}
WAYS = {
    "text": mark("text"),
    "call": mark("call"),
    "email": mark("email"),
    "chat": mark("chat"),
    "push": mark("push notification"),
}
_WAY = re.compile(r" by (?:text|call|email|chat|push)(?: and (?:text|call|email|chat|push))*")
_OWN = {
    "job.assigned": mark("accepted the job"),
    "job.on_the_way": mark("is on the way"),
    "job.running_late": mark("is running late {minutes} min"),
}

# Actors that are no people, and so have no name.
_ACTORS = frozenset({mark("Phone provider"), mark("Customer")})


class _Values(dict[str, Any]):
    def __missing__(self, name: str) -> str:
        return "—"


def translate_actor(label: str) -> str:
    """Return the label of an actor in the active language. A name stays as it is."""
    return gettext(label) if label in _ACTORS else label


def translate_event(kind: str, data: Mapping[str, Any], who: str, *, is_own: bool) -> str:
    """Return the sentence of an event in the active language, or "" if the kind has none.

    `who`: the technician. `is_own`: the technician reported it. A note stays as it was written.
    """
    sentence = _OWN.get(kind, "") if is_own else ""
    sentence = sentence or PHRASES.get(kind, "")
    if not sentence:
        return ""
    words = gettext(sentence).format_map(_Values(data, who=who))
    note = f" (“{data['note']}”)" if data.get("note") else ""
    detail = _detail_of(kind, data)
    return f"{words}: {detail}{note}" if detail else words + note


def _detail_of(kind: str, data: Mapping[str, Any]) -> str:
    """Return why, whom or what, in the active language. What people entered stays as they wrote it."""
    if data.get("reason_text"):
        return gettext(str(data["reason_text"]))
    if kind in ABOUT_NEWS and data.get("news_text"):
        reason = translate_reason(str(data.get("reason") or ""))
        return gettext(str(data["news_text"])) + (f" ({reason})" if reason else "")
    if kind == "job.corrected" and data.get("changed"):
        return ", ".join(gettext(str(name)) for name in data["changed"])
    if kind == "job.waiting":
        return gettext(WAITS.get(str(data.get("waiting_for")), WAITS["technician"])).format_map(_Values(data))
    if kind == "job.on_the_way" and data.get("eta"):
        return gettext("arriving at about {eta}").format_map(_Values(data))
    if kind in WITH_CODES and (code := data.get("code") or data.get("error_code")):
        return gettext("error {code}").format(code=code)
    if kind == "job.alert_settled":
        return translate_resolution(str(data.get("how") or ""))
    if kind == "job.alert_escalated":
        return translate_recipients(str(data.get("told") or ""))
    reason = str(data.get("reason") or data.get("why") or "")
    is_entered = kind == "job.cancelled" and not reason.startswith("duplicate of job ")
    return reason if is_entered else translate_reason(reason)


def translate_recipients(told: str) -> str:
    """Translate the ways in "Ann by text and call, Bob by email"."""
    found = (_WAY.sub(lambda match: _translate_way(match[0]), part) for part in told.split(", "))
    return ", ".join(found)


def _translate_way(words: str) -> str:
    ways = [gettext(WAYS.get(way, way)) for way in words.removeprefix(" by ").split(" and ")]
    return gettext(" by {ways}").format(ways=gettext(" and ").join(ways))


def translate_resolution(how: str) -> str:
    """Return how the cause of an alert ended, in the active language. The name of the person stays."""
    return translate_stored(how)
