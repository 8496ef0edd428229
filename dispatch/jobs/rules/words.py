"""What a technician hears. One vocabulary for all calls that offer a job; sentences are short, for a bad line."""

import re
from dataclasses import dataclass

from dispatch.jobs.rules.states import STATES

OFFER_KEYS = "12*"
ACCEPT_KEY, DECLINE_KEY, REPEAT_KEY = "1", "2", "*"

_PRIORITY = {1: "Emergency.", 2: "Urgent.", 3: ""}
_UNITS = {"mi": ("mile", 1609.344), "km": ("kilometer", 1000.0)}
_STATE_AT_END = re.compile(r"\b([A-Z]{2})(?=(?:,? \d{5}(?:-\d{4})?)?$)")
_ZIP_AT_END = re.compile(r",? (\d{5})(?:-\d{4})?$")

NO_LONGER_AVAILABLE = ("This job is no longer available.", "Thank you. Goodbye.")
TAKEN_BY_ANOTHER = ("Sorry, this job is already taken.", "Thank you. Goodbye.")
EXPIRED = ("Sorry, the time to accept this job is over.", "Thank you. Goodbye.")
DECLINED = ("You declined the job. Goodbye.",)


@dataclass(frozen=True)
class Told:
    """What there is to say about a job. `unit` is `mi` or `km`; distance in metres."""

    service: str
    priority: int
    address: str
    distance_m: int
    unit: str
    customer_name: str
    customer_phone: str


def offer(told: Told) -> tuple[str, ...]:
    """Service, place, distance, keys."""
    sentences = [
        "Hello. There is a job for you.",
        f"{_PRIORITY.get(told.priority, '')} {told.service}.".strip(),
        f"{spoken_place(told.address)}." if told.address else "",
        f"{spoken_distance(told.distance_m, told.unit)} from you.",
        "Press 1 to accept, 2 to decline, star to repeat.",
    ]
    return tuple(sentence for sentence in sentences if sentence)


def accepted(told: Told) -> tuple[str, ...]:
    """The job is theirs: whom to see, where, and how to reach them."""
    where = f"{spoken_place(told.address)}." if told.address else ""
    return tuple(
        filter(
            None,
            (
                "Thank you. The job is yours.",
                f"{told.customer_name}." if told.customer_name else "",
                where,
                f"Their number is {spoken_digits(told.customer_phone)}." if told.customer_phone else "",
                "Goodbye.",
            ),
        )
    )


def spoken_place(address: str) -> str:
    """An address as it is read out: states in full, ZIP codes digit by digit ("AZ 85004" → "Arizona, 8 5 0 0
    4")."""
    flat = ", ".join(piece.strip() for piece in re.split(r"[,\n]", address) if piece.strip()).rstrip(".")
    flat = _STATE_AT_END.sub(lambda found: STATES.get(found[1], found[1]), flat)
    return _ZIP_AT_END.sub(lambda found: ", " + " ".join(found[1]), flat)


def spoken_distance(metres: int, unit: str) -> str:
    """ "less than a mile", "1 mile", "about 12 kilometers"."""
    name, length = _UNITS[unit]
    value = round(metres / length)
    if metres < length * 0.95:
        return f"Less than a {name}"
    return f"About 1 {name}" if value <= 1 else f"About {value} {name}s"


def spoken_digits(phone: str) -> str:
    """A number digit by digit, in groups: "+16025550123" → "6 0 2, 5 5 5, 0 1 2 3"."""
    digits = "".join(filter(str.isdigit, phone))
    if phone.startswith("+1") and len(digits) == 11:
        groups: tuple[str, ...] = (digits[1:4], digits[4:7], digits[7:])
    else:
        groups = tuple(digits[at : at + 3] for at in range(0, len(digits), 3))
    return ", ".join(" ".join(group) for group in groups)


# --- texts ------------------------------------------------------------------------------------------------------

LONGEST_ADDRESS = 90
YES = frozenset({"1", "YES", "Y", "ACCEPT", "OK"})
NO = frozenset({"2", "NO", "N", "DECLINE"})

TEXT_ANSWERS = {
    "accepted": "Thank you. The job is yours.",
    "declined": "You declined the job.",
    "taken": "Sorry, this job is already taken.",
    "expired": "Sorry, the time to accept this job is over.",
    "no_longer": "This job is no longer available.",
}
NOTHING_OFFERED = "There is no job waiting for your answer."
ANSWER_WITH = "Reply 1 to accept or 2 to decline the job."


def key_in(body: str) -> str:
    """The key that a text stands for: 1, 2, or "" when it says something else."""
    word = re.sub(r"[^A-Z0-9]", "", body.strip().upper())
    return ACCEPT_KEY if word in YES else DECLINE_KEY if word in NO else ""


def offer_text(organization: str, told: Told, url: str) -> str:
    """An offer in one text."""
    what = f"{_PRIORITY.get(told.priority, '')} {told.service}".strip()
    distance = spoken_distance(told.distance_m, told.unit).lower()
    place = f", {cut(told.address)}" if told.address else ""
    return f"{organization}: {what}{place}, {distance} from you. Reply 1 to accept, 2 to decline. {url}"


def job_text(organization: str, told: Told, url: str, *, by_hand: bool) -> str:
    """The job is theirs: whom to see, where, how to reach them, and the page on which they close it."""
    began = "you were given a job" if by_hand else "the job is yours"
    customer = ", ".join(part for part in (told.customer_name, told.customer_phone) if part)
    parts = [f"{organization}: {began}. {told.service}", customer, told.address or "The place is not known"]
    return ". ".join(part for part in parts if part) + f". Your jobs: {url}"


def cut(text: str, longest: int = LONGEST_ADDRESS) -> str:
    """On one line, and no longer than that; in letters that a text carries cheaply."""
    flat = " ".join(text.split())
    return flat if len(flat) <= longest else flat[: longest - 3].rstrip(" ,") + "..."
