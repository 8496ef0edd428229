"""Build the spoken prompts and texts of a job offer. Sentences are short, to survive a bad phone connection.

They are in the active language (`telephony.speech.speaking`). Constants are English, and translated where they are
used.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

import phonenumbers

from dispatch.core import accents, speech
from dispatch.core.languages import gettext as _
from dispatch.core.languages import mark, ngettext
from dispatch.core.speech import Fragment, Sentence, fill
from dispatch.jobs.rules.states import STATES

OFFER_KEYS = "12*"
ACCEPT_KEY, DECLINE_KEY = "1", "2"
# On a call-back whose caller id may be forged: enter the PIN to hear the customer's data.
PIN_KEY = "3"
# On a call-back: go to the menu of the technician's jobs.
MENU_KEY = "5"

_PRIORITY = {1: mark("Emergency."), 2: mark("Urgent.")}
_METERS = {"mi": 1609.344, "km": 1000.0}
_STATE_AT_END = re.compile(r"\b([A-Z]{2})(?=(?:,? \d{5}(?:-\d{4})?)?$)")
_ZIP_AT_END = re.compile(r",? (\d{5})(?:-\d{4})?$")
_STREET = re.compile(r"\d+[\w-]* [^,]+")
# Countries whose streets have English or Spanish names, among those that are likely to be served.
_ENGLISH = frozenset({"US", "CA", "GB", "IE", "AU", "NZ"})
_SPANISH = frozenset({"MX", "ES", "AR", "CL", "CO", "CR", "DO", "EC", "GT", "HN", "NI", "PA", "PE", "PR", "SV"})

NO_LONGER_AVAILABLE = (mark("This job is no longer available."), mark("Thank you. Goodbye."))
TAKEN_BY_ANOTHER = (mark("Sorry, this job has already been taken."), mark("Thank you. Goodbye."))
EXPIRED = (mark("Sorry, the time to accept this job has passed."), mark("Thank you. Goodbye."))
DECLINED = (mark("You declined the job. Goodbye."),)
THE_JOB_IS_YOURS, YOU_HAVE_THE_JOB = mark("Thank you. The job is yours."), mark("You have the job.")
ENTER_PIN = (mark("Enter your PIN, then press pound."),)
WRONG_PIN = mark("This PIN is wrong.")
PIN_LOCKED = (mark("There were too many wrong PINs. Call your dispatcher."), mark("Goodbye."))


NEWS_KEYS = "1*"
NEWS_OVER = (mark("This message is out of date."), mark("Goodbye."))
NEWS_CONFIRMED = (mark("Thank you. Goodbye."),)
_NEWS = {
    "assigned": mark("You have a new job"),
    "reassigned": mark("Your job was given to another technician"),
    "cancelled": mark("Your job was canceled"),
    "changed": mark("Your job has changed"),
    "reopened": mark("Your job was reopened"),
}
# News about a job that the technician has.
_THEIRS = frozenset({"assigned", "changed", "reopened"})


@dataclass(frozen=True)
class PromptContext:
    """The facts of a job that a prompt or text may name.

    `unit` is `mi` or `km`; `distance_m` is in meters. `region`: the ISO code of the country in whose format phone
    numbers are spoken. `arrival`: the arrival window in words and in the active language, such as "between 2:00 PM
    and 4:00 PM", or empty.
    """

    service: str
    priority: int
    address: str
    distance_m: int
    unit: str
    customer_name: str
    customer_phone: str
    region: str = "US"
    arrival: str = ""


def offer_prompt(context: PromptContext, *, has_pin: bool = False, has_menu: bool = False) -> tuple[str, ...]:
    """Return the spoken offer: service, address, distance, keys.

    `has_pin`: the address needs the PIN. `has_menu`: the caller has open jobs.
    """
    sentences = [
        _("Hello. We have a job for you."),
        f"{_service(context)}.",
        _place_sentence(context),
        _("{distance} from you.").format(distance=spoken_distance(context.distance_m, context.unit)),
        _arrival_sentence(context),
        _("Press 1 to accept, 2 to decline, star to repeat."),
        _("To hear the address, press 3.") if has_pin else "",
        _("For your open jobs, press 5.") if has_menu else "",
    ]
    return tuple(sentence for sentence in sentences if sentence)


def job_sentences(context: PromptContext) -> tuple[str, ...]:
    """Return the spoken facts of a technician's job: service, address, the customer's name and number."""
    name = context.customer_name
    sentences = [
        f"{_service(context)}.",
        _arrival_sentence(context),
        _place_sentence(context),
        _("The customer is {name}.").format(name=name) if name else "",
        _number_sentence(context),
    ]
    return tuple(sentence for sentence in sentences if sentence)


def accepted_prompt(context: PromptContext) -> tuple[str, ...]:
    """Return the prompt after accepting: the customer, the address and the customer's number."""
    sentences = [
        _(THE_JOB_IS_YOURS),
        f"{context.customer_name}." if context.customer_name else "",
        _place_sentence(context),
        _arrival_sentence(context),
        _number_sentence(context),
        _("Goodbye."),
    ]
    return tuple(sentence for sentence in sentences if sentence)


def news_prompt(organization: str, news: str, context: PromptContext) -> tuple[str, ...]:
    """Return the spoken change of a job: what happened, the job, the keys.

    A job that is still theirs includes the customer.
    """
    theirs = news in _THEIRS
    sentences = [
        _("Hello. This is {organization}.").format(organization=organization),
        f"{_(_NEWS[news])}.",
        f"{context.service}.",
        f"{context.customer_name}." if theirs and context.customer_name else "",
        _place_sentence(context),
        _arrival_sentence(context) if theirs else "",
        _number_sentence(context) if theirs else "",
        "" if theirs else _("You don't need to go there."),
        _("Press 1 to confirm, star to repeat."),
    ]
    return tuple(sentence for sentence in sentences if sentence)


def accepted_without_details(opening: str, *, is_texted: bool, has_pin: bool) -> tuple[str, ...]:
    """Return the prompt for an assigned technician whose caller id may be forged: nothing about the customer."""
    address = _("We'll text you the address.") if is_texted else ""
    pin = _("To hear the customer's name, address and number, press 3.") if has_pin else ""
    ask = "" if is_texted or has_pin else _("Call your dispatcher for the address.")
    return tuple(filter(None, (_(opening), address, pin, ask, "" if has_pin else _("Goodbye."))))


def _service(context: PromptContext) -> str:
    urgency = _PRIORITY.get(context.priority)
    return f"{_(urgency)} {context.service}" if urgency else context.service


def _place_sentence(context: PromptContext) -> str:
    return fill("{place}.", place=spoken_place(context.address, context.region)) if context.address else ""


def _arrival_sentence(context: PromptContext) -> str:
    # In Spanish, the window ends with "p.m.".
    return _("Arrive {window}.").format(window=context.arrival.removesuffix(".")) if context.arrival else ""


def _number_sentence(context: PromptContext) -> str:
    if not context.customer_phone:
        return ""
    digits = Fragment(spoken_digits(context.customer_phone, context.region), speech.NUMBER)
    return fill(_("Their number is {number}."), number=Sentence.of((digits,)))


def spoken_place(address: str, region: str = "US") -> Sentence:
    """Return an address for text-to-speech: state names in full, ZIP codes digit by digit, the street marked.

    "AZ 85004" becomes "Arizona, 8 5 0 0 4". `region`: the ISO code of the country.
    """
    flat = ", ".join(piece.strip() for piece in re.split(r"[,\n]", address) if piece.strip()).rstrip(".")
    flat = _STATE_AT_END.sub(lambda match: STATES.get(match[1], match[1]), flat)
    flat = _ZIP_AT_END.sub(lambda match: ", " + " ".join(match[1]), flat)
    language = "en" if region in _ENGLISH else "es" if region in _SPANISH else ""
    street = _STREET.match(flat)
    if street is None or not language:
        return Sentence.of((Fragment(flat),))
    return Sentence.of((Fragment(street[0], speech.STREET, language), Fragment(flat[street.end() :])))


def spoken_distance(meters: int, unit: str) -> str:
    """Return a rounded distance: "Less than a mile", "About 1 mile", "About 12 kilometers"."""
    count, is_short = _rounded(meters, unit)
    if unit == "mi":
        if is_short:
            return _("Less than a mile")
        return ngettext("About {count} mile", "About {count} miles", count).format(count=count)
    if is_short:
        return _("Less than a kilometer")
    return ngettext("About {count} kilometer", "About {count} kilometers", count).format(count=count)


def written_distance(meters: int, unit: str) -> str:
    """Return the distance within the sentence of a text: "about 12 kilometers"."""
    count, is_short = _rounded(meters, unit)
    if unit == "mi":
        if is_short:
            return _("less than a mile")
        return ngettext("about {count} mile", "about {count} miles", count).format(count=count)
    if is_short:
        return _("less than a kilometer")
    return ngettext("about {count} kilometer", "about {count} kilometers", count).format(count=count)


def _rounded(meters: int, unit: str) -> tuple[int, bool]:
    """Return the distance in whole units, at least 1, and whether it is less than one."""
    return max(1, round(meters / _METERS[unit])), meters < _METERS[unit] * 0.95


def spoken_digits(phone: str, region: str = "US") -> str:
    """Return a number digit by digit, in groups, as it is dialed from `region` (an ISO code).

    "+16025550123" becomes "6 0 2, 5 5 5, 0 1 2 3". A foreign number begins with "plus".
    """
    try:
        number = phonenumbers.parse(phone, None)
    except phonenumbers.NumberParseException:
        return _in_groups(phone)
    if number.country_code == phonenumbers.country_code_for_region(region):
        return _in_groups(phonenumbers.format_number(number, phonenumbers.PhoneNumberFormat.NATIONAL))
    foreign = phonenumbers.format_number(number, phonenumbers.PhoneNumberFormat.INTERNATIONAL)
    return _("plus {digits}").format(digits=_in_groups(foreign))


def _in_groups(written: str) -> str:
    """Read the digits of each group of a formatted number; a group of more than four in threes."""
    groups = []
    for digits in re.findall(r"\d+", written):
        size = len(digits) if len(digits) <= 4 else 3
        groups += [digits[at : at + size] for at in range(0, len(digits), size)]
    return ", ".join(" ".join(group) for group in groups)


# --- texts ------------------------------------------------------------------------------------------------------

MAX_ADDRESS_LENGTH = 90
# Words are compared without accents (`word_of`), so SÍ counts as SI.
YES = frozenset({"1", "YES", "Y", "ACCEPT", "OK", "SI", "ACEPTO", "ACEPTAR"})
NO = frozenset({"2", "NO", "N", "DECLINE", "RECHAZO", "RECHAZAR"})

TEXT_ANSWERS = {
    "accepted": mark("Thank you. The job is yours."),
    "declined": mark("You declined the job."),
    "taken": mark("Sorry, this job has already been taken."),
    "expired": mark("Sorry, the time to accept this job has passed."),
    "no_longer": mark("This job is no longer available."),
}
NOTHING_OFFERED = mark("You have no job offer to answer.")
ANSWER_WITH = mark("Reply 1 to accept the job or 2 to decline it.")
WRONG_ETA = mark("Reply OMW and the minutes until you arrive, 1 to 480, such as OMW 20.")
PASSED_ON = mark("Thank you. Your dispatcher has received your text.")
# Words that may also answer another text, such as the address of a job.
AMBIGUOUS = frozenset({"YES", "Y", "OK", "NO", "N", "SI"})
CONFIRMATIONS = frozenset(
    {"OK", "YES", "Y", "THANKS", "THANKYOU", "THX", "GOTIT", "COPY", "SI", "GRACIAS", "VALE", "ENTENDIDO", "LISTO"}
)


_LATE = re.compile(
    r"\W*(?:(?:i\W?m|i am) )?(?:running )?late\W*(?:by |about )?(\d{1,3}) ?(?:m|mins?|minutes?)?\W*", re.IGNORECASE
)
# "tarde 20", "voy 20 minutos tarde", "retrasado 20 min": compared without accents.
_LATE_IN_SPANISH = re.compile(
    r"\W*(?:(?:voy|llego|estoy|me) )?(?:con )?"
    r"(?:(?:tarde|retras[oa]d?[oa]?|atras[oa]d?[oa]?|retraso)\W*(?:de |unos )?(\d{1,3}) ?(?:m|mins?|minutos?)?"
    r"|(\d{1,3}) ?(?:m|mins?|minutos?) (?:tarde|de retraso))\W*",
    re.IGNORECASE,
)


def late_minutes_in(body: str) -> int | None:
    """Return the minutes of a text such as "late 20" or "voy tarde 20 min"; None for anything else."""
    said = " ".join(body.split())
    if match := _LATE.fullmatch(said):
        return int(match[1])
    match = _LATE_IN_SPANISH.fullmatch(accents.without_accents(said))
    return int(match[1] or match[2]) if match else None


def late_reply(minutes: int) -> str:
    """Return the reply to a text that reports a delay."""
    return ngettext(
        "Thank you. Your dispatcher knows that you are {count} minute late.",
        "Thank you. Your dispatcher knows that you are {count} minutes late.",
        minutes,
    ).format(count=minutes)


def join_names(names: Iterable[str]) -> str:
    """Return names as a list in a sentence: "Ann", "Ann and Bob", "Ann, Bob and Cid"."""
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def which_job(count: int, url: str) -> str:
    """Return the reply to "on my way" from a technician with several jobs."""
    return _("You have {count} jobs. Open your page and choose the one you are on the way to: {url}").format(
        count=count, url=url
    )


def on_the_way_recorded(eta: str) -> str:
    """Return the reply to "on my way". `eta`: the local time of arrival, or empty."""
    if eta:
        return _("Thank you. You are expected at about {eta}.").format(eta=eta)
    return _("Thank you. To add when you will arrive, reply OMW and the minutes, such as OMW 20.")


def key_in(body: str) -> str:
    """Return the key that a text stands for: "1", "2", or "" for anything else."""
    word = word_of(body)
    return ACCEPT_KEY if word in YES else DECLINE_KEY if word in NO else ""


def word_of(body: str) -> str:
    """Return the letters and digits of a text in upper case, without accents."""
    return re.sub(r"[^A-Z0-9]", "", accents.without_accents(body).strip().upper())


def offer_text(organization: str, context: PromptContext, url: str) -> str:
    """Return an offer as one text."""
    place = f", {shorten(context.address)}" if context.address else ""
    arrival = f" {_arrival_sentence(context)}" if context.arrival else ""
    return _(
        "{organization}: {service}{place}, {distance} from you.{arrival} Reply 1 to accept, 2 to decline. {url}"
    ).format(
        organization=organization,
        service=_service(context),
        place=place,
        distance=written_distance(context.distance_m, context.unit),
        arrival=arrival,
        url=url,
    )


def job_text(organization: str, context: PromptContext, url: str, *, is_manual: bool) -> str:
    """Return the text after an assignment: the customer, the number, the address and the technician's page."""
    began = _("you have a new job") if is_manual else _("the job is yours")
    parts = [
        f"{organization}: {began}. {context.service}",
        _arrival_sentence(context).rstrip("."),
        _customer(context),
        context.address or _("No address given"),
    ]
    return _with_page(parts, url)


def news_text(organization: str, news: str, context: PromptContext, url: str) -> str:
    """Return the text about a change of a job, with the technician's page."""
    opening = f"{organization}: {_(_NEWS[news]).lower()}"
    if news in _THEIRS:
        arrival = _arrival_sentence(context).rstrip(".")
        return _with_page([opening, context.service, arrival, _customer(context), context.address], url)
    return _with_page(
        [opening, context.service, shorten(context.address), _("You don't need to go there")],
        url,
    )


def news_title(news: str) -> str:
    """Return the change of a job as a title: "Your job has changed"."""
    return _(_NEWS[news])


def page_text(organization: str, url: str) -> str:
    """Return the text with the link to the technician's page."""
    return _("{organization}: your page for duty, position and jobs: {url} Don't share this link.").format(
        organization=organization, url=url
    )


def help_text(organization: str, url: str) -> str:
    """Return the reply to HELP from a technician."""
    return _(
        "{organization}: reply 1 to accept an offer or 2 to decline, or call this number. "
        "OMW 20 means that you are on the way and will arrive in 20 minutes. "
        "Your page: {url} STOP ends texts, not calls."
    ).format(organization=organization, url=url)


def _customer(context: PromptContext) -> str:
    return ", ".join(part for part in (context.customer_name, context.customer_phone) if part)


def _with_page(parts: list[str], url: str) -> str:
    said = ". ".join(part for part in parts if part)
    return _("{said}. Your jobs: {url}").format(said=said, url=url)


def shorten(text: str, longest: int = MAX_ADDRESS_LENGTH) -> str:
    """Return the text on one line of at most `longest` characters.

    The ellipsis is ASCII to keep texts in GSM-7.
    """
    flat = " ".join(text.split())
    return flat if len(flat) <= longest else flat[: longest - 3].rstrip(" ,") + "..."
