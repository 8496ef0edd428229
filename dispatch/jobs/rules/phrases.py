"""Build the spoken prompts and texts of a job offer. Sentences are short, to survive a bad phone connection."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

import phonenumbers

from dispatch.jobs.rules.states import STATES

OFFER_KEYS = "12*"
ACCEPT_KEY, DECLINE_KEY, REPEAT_KEY = "1", "2", "*"
# On a call-back whose caller id may be forged: enter the PIN to hear the customer's data.
PIN_KEY = "3"
# On a call-back: go to the menu of the technician's jobs.
MENU_KEY = "5"

_PRIORITY = {1: "Emergency.", 2: "Urgent.", 3: ""}
_UNITS = {"mi": ("mile", 1609.344), "km": ("kilometer", 1000.0)}
_STATE_AT_END = re.compile(r"\b([A-Z]{2})(?=(?:,? \d{5}(?:-\d{4})?)?$)")
_ZIP_AT_END = re.compile(r",? (\d{5})(?:-\d{4})?$")

NO_LONGER_AVAILABLE = ("This job is no longer available.", "Thank you. Goodbye.")
TAKEN_BY_ANOTHER = ("Sorry, this job has already been taken.", "Thank you. Goodbye.")
EXPIRED = ("Sorry, the time to accept this job has passed.", "Thank you. Goodbye.")
DECLINED = ("You declined the job. Goodbye.",)
THE_JOB_IS_YOURS, YOU_HAVE_THE_JOB = "Thank you. The job is yours.", "You have the job."
ENTER_PIN = ("Enter your PIN, then press pound.",)
WRONG_PIN = "This PIN is wrong."
PIN_LOCKED = ("There were too many wrong PINs. Call your dispatcher.", "Goodbye.")


NEWS_KEYS = "1*"
NEWS_OVER = ("This message is out of date.", "Goodbye.")
NEWS_CONFIRMED = ("Thank you. Goodbye.",)
_NEWS = {
    "assigned": "You have a new job",
    "reassigned": "Your job was given to another technician",
    "cancelled": "Your job was canceled",
    "changed": "Your job has changed",
    "reopened": "Your job was reopened",
}
# News about a job that the technician has.
_THEIRS = frozenset({"assigned", "changed", "reopened"})


@dataclass(frozen=True)
class PromptContext:
    """The facts of a job that a prompt or text may name.

    `unit` is `mi` or `km`; `distance_m` is in meters. `region`: the ISO code of the country in whose format phone
    numbers are spoken.
    """

    service: str
    priority: int
    address: str
    distance_m: int
    unit: str
    customer_name: str
    customer_phone: str
    region: str = "US"


def offer_prompt(context: PromptContext, *, has_pin: bool = False, has_menu: bool = False) -> tuple[str, ...]:
    """Return the spoken offer: service, address, distance, keys.

    `has_pin`: the address needs the PIN. `has_menu`: the caller has open jobs.
    """
    sentences = [
        "Hello. We have a job for you.",
        f"{_PRIORITY.get(context.priority, '')} {context.service}.".strip(),
        f"{spoken_place(context.address)}." if context.address else "",
        f"{spoken_distance(context.distance_m, context.unit)} from you.",
        "Press 1 to accept, 2 to decline, star to repeat.",
        "To hear the address, press 3." if has_pin else "",
        "For your open jobs, press 5." if has_menu else "",
    ]
    return tuple(sentence for sentence in sentences if sentence)


def job_sentences(context: PromptContext) -> tuple[str, ...]:
    """Return the spoken facts of a technician's job: service, address, the customer's name and number."""
    number = spoken_digits(context.customer_phone, context.region) if context.customer_phone else ""
    sentences = [
        f"{_PRIORITY.get(context.priority, '')} {context.service}.".strip(),
        f"{spoken_place(context.address)}." if context.address else "",
        f"The customer is {context.customer_name}." if context.customer_name else "",
        f"Their number is {number}." if number else "",
    ]
    return tuple(sentence for sentence in sentences if sentence)


def accepted_prompt(context: PromptContext) -> tuple[str, ...]:
    """Return the prompt after accepting: the customer, the address and the customer's number."""
    where = f"{spoken_place(context.address)}." if context.address else ""
    return tuple(
        filter(
            None,
            (
                "Thank you. The job is yours.",
                f"{context.customer_name}." if context.customer_name else "",
                where,
                f"Their number is {spoken_digits(context.customer_phone, context.region)}."
                if context.customer_phone
                else "",
                "Goodbye.",
            ),
        )
    )


def news_prompt(organization: str, news: str, context: PromptContext) -> tuple[str, ...]:
    """Return the spoken change of a job: what happened, the job, the keys.

    A job that is still theirs includes the customer.
    """
    theirs = news in _THEIRS
    sentences = [
        f"Hello. This is {organization}.",
        f"{_NEWS[news]}.",
        f"{context.service}.",
        f"{context.customer_name}." if theirs and context.customer_name else "",
        f"{spoken_place(context.address)}." if context.address else "",
        f"Their number is {spoken_digits(context.customer_phone)}." if theirs and context.customer_phone else "",
        "" if theirs else "You don't need to go there.",
        "Press 1 to confirm, star to repeat.",
    ]
    return tuple(sentence for sentence in sentences if sentence)


def accepted_without_details(opening: str, *, is_texted: bool, has_pin: bool) -> tuple[str, ...]:
    """Return the prompt for an assigned technician whose caller id may be forged: nothing about the customer."""
    address = "We'll text you the address." if is_texted else ""
    pin = "To hear the customer's name, address and number, press 3." if has_pin else ""
    ask = "" if is_texted or has_pin else "Call your dispatcher for the address."
    return tuple(filter(None, (opening, address, pin, ask, "" if has_pin else "Goodbye.")))


def spoken_place(address: str) -> str:
    """Return an address for text-to-speech: state names in full, ZIP codes digit by digit.

    "AZ 85004" becomes "Arizona, 8 5 0 0 4".
    """
    flat = ", ".join(piece.strip() for piece in re.split(r"[,\n]", address) if piece.strip()).rstrip(".")
    flat = _STATE_AT_END.sub(lambda match: STATES.get(match[1], match[1]), flat)
    return _ZIP_AT_END.sub(lambda match: ", " + " ".join(match[1]), flat)


def spoken_distance(meters: int, unit: str) -> str:
    """Return a rounded distance: "Less than a mile", "About 1 mile", "About 12 kilometers"."""
    name, length = _UNITS[unit]
    value = round(meters / length)
    if meters < length * 0.95:
        return f"Less than a {name}"
    return f"About 1 {name}" if value <= 1 else f"About {value} {name}s"


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
    return f"plus {_in_groups(foreign)}"


def _in_groups(written: str) -> str:
    """Read the digits of each group of a formatted number; a group of more than four in threes."""
    groups = []
    for digits in re.findall(r"\d+", written):
        size = len(digits) if len(digits) <= 4 else 3
        groups += [digits[at : at + size] for at in range(0, len(digits), size)]
    return ", ".join(" ".join(group) for group in groups)


# --- texts ------------------------------------------------------------------------------------------------------

MAX_ADDRESS_LENGTH = 90
YES = frozenset({"1", "YES", "Y", "ACCEPT", "OK"})
NO = frozenset({"2", "NO", "N", "DECLINE"})

TEXT_ANSWERS = {
    "accepted": "Thank you. The job is yours.",
    "declined": "You declined the job.",
    "taken": "Sorry, this job has already been taken.",
    "expired": "Sorry, the time to accept this job has passed.",
    "no_longer": "This job is no longer available.",
}
NOTHING_OFFERED = "You have no job offer to answer."
ANSWER_WITH = "Reply 1 to accept the job or 2 to decline it."
WRONG_ETA = "Reply OMW and the minutes until you arrive, 1 to 480, such as OMW 20."
PASSED_ON = "Thank you. Your dispatcher has received your text."
# Words that may also answer another text, such as the address of a job.
AMBIGUOUS = frozenset({"YES", "Y", "OK", "NO", "N"})
CONFIRMATIONS = frozenset({"OK", "YES", "Y", "THANKS", "THANKYOU", "THX", "GOTIT", "COPY"})


_LATE = re.compile(
    r"\W*(?:(?:i\W?m|i am) )?(?:running )?late\W*(?:by |about )?(\d{1,3}) ?(?:m|mins?|minutes?)?\W*", re.IGNORECASE
)


def late_minutes_in(body: str) -> int | None:
    """Return the minutes of a text such as "late 20" or "running late 20 min"; None for anything else."""
    match = _LATE.fullmatch(" ".join(body.split()))
    return int(match[1]) if match else None


def late_reply(minutes: int) -> str:
    """Return the reply to a text that reports a delay."""
    return f"Thank you. Your dispatcher knows that you are {count_of(minutes, 'minute')} late."


def count_of(count: int, noun: str) -> str:
    """Return a number with its noun: "1 minute", "20 minutes"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def join_names(names: Iterable[str]) -> str:
    """Return names as a list in a sentence: "Ann", "Ann and Bob", "Ann, Bob and Cid"."""
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def which_job(count: int, url: str) -> str:
    """Return the reply to "on my way" from a technician with several jobs."""
    return f"You have {count} jobs. Open your page and choose the one you are on the way to: {url}"


def on_the_way_recorded(eta: str) -> str:
    """Return the reply to "on my way". `eta`: the local time of arrival, or empty."""
    if eta:
        return f"Thank you. You are expected at about {eta}."
    return "Thank you. To add when you will arrive, reply OMW and the minutes, such as OMW 20."


def key_in(body: str) -> str:
    """Return the key that a text stands for: "1", "2", or "" for anything else."""
    word = word_of(body)
    return ACCEPT_KEY if word in YES else DECLINE_KEY if word in NO else ""


def word_of(body: str) -> str:
    """Return the letters and digits of a text in upper case."""
    return re.sub(r"[^A-Z0-9]", "", body.strip().upper())


def offer_text(organization: str, context: PromptContext, url: str) -> str:
    """Return an offer as one text."""
    service = f"{_PRIORITY.get(context.priority, '')} {context.service}".strip()
    distance = spoken_distance(context.distance_m, context.unit).lower()
    place = f", {shorten(context.address)}" if context.address else ""
    return f"{organization}: {service}{place}, {distance} from you. Reply 1 to accept, 2 to decline. {url}"


def job_text(organization: str, context: PromptContext, url: str, *, is_manual: bool) -> str:
    """Return the text after an assignment: the customer, the number, the address and the technician's page."""
    began = "you have a new job" if is_manual else "the job is yours"
    customer = ", ".join(part for part in (context.customer_name, context.customer_phone) if part)
    parts = [f"{organization}: {began}. {context.service}", customer, context.address or "No address given"]
    return ". ".join(part for part in parts if part) + f". Your jobs: {url}"


def news_text(organization: str, news: str, context: PromptContext, url: str) -> str:
    """Return the text about a change of a job, with the technician's page."""
    if news in _THEIRS:
        customer = ", ".join(part for part in (context.customer_name, context.customer_phone) if part)
        parts = [context.service, customer, context.address]
    else:
        parts = [context.service, shorten(context.address), "You don't need to go there"]
    said = ". ".join(part for part in parts if part)
    return f"{organization}: {_NEWS[news].lower()}. {said}. Your jobs: {url}"


def shorten(text: str, longest: int = MAX_ADDRESS_LENGTH) -> str:
    """Return the text on one line of at most `longest` characters.

    The ellipsis is ASCII to keep texts in GSM-7.
    """
    flat = " ".join(text.split())
    return flat if len(flat) <= longest else flat[: longest - 3].rstrip(" ,") + "..."
