"""Data of the demo organizations. ZIP codes are real; phone numbers are from the range reserved for fiction."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import time

WEEKDAYS, EVERY_DAY = range(5), range(7)
DAY, EVENING, NIGHT = (time(7), time(16)), (time(14), time(23)), (time(22), time(6))

SKILLS = {
    "plumbing": "Plumbing",
    "hvac": "Heating and cooling",
    "gas": "Gas",
    "electrical": "Electrical",
    "steam": "Steam boilers",
    "wells": "Wells and pumps",
}


@dataclass(frozen=True)
class Service:
    """Describe a service type. `required`: codes of SKILLS."""

    code: str
    name: str
    required: tuple[str, ...]
    spoken: str = ""


SERVICES = (
    Service("plumbing", "Plumbing", ("plumbing",), "Plumbing repair"),
    Service("drain", "Drain cleaning", ("plumbing",), "A blocked drain"),
    Service("ac-repair", "AC repair", ("hvac",), "Air conditioning repair"),
    Service("furnace", "Furnace repair", ("hvac", "gas")),
    Service("water-heater", "Water heater", ("plumbing", "gas"), "A water heater"),
    Service("electrical", "Electrical", ("electrical",), "Electrical repair"),
    Service("inspection", "Home inspection", ()),
    Service("well-pump", "Well pump", ("wells",), "A well pump"),
    Service("steam-boiler", "Steam boiler", ("steam",)),  # deliberately: nobody has this skill
)


@dataclass(frozen=True)
class Person:
    """Describe a technician.

    `zip_code`: home. `skills`: codes separated by spaces. `phone_habit`: a key of `phones.BEHAVIOURS`. `hours`:
    (weekdays, (starts, ends)), or None for "whenever on duty". `radius_m`: personal radius in meters.
    """

    name: str
    phone: str
    zip_code: str
    skills: str
    phone_habit: str = "friendly"
    hours: tuple[range, tuple[time, time]] | None = None
    radius_m: int | None = None
    max_open_jobs: int = 2
    on_duty: bool = True
    time_zone: str = ""


def _phone(n: int) -> str:
    return f"+16025550{n:03d}"


# The phone of a dispatcher who is off duty, so that alerts reach somebody.
DISPATCHER_PHONE = _phone(141)

TECHNICIANS = (
    Person("Rosa Delgado", _phone(101), "85004", "plumbing gas hvac", "eager", max_open_jobs=3),
    Person("Wei-Ling Chen", _phone(102), "85281", "hvac electrical", "friendly"),
    Person("Kwame Asante-Boateng", _phone(103), "85251", "plumbing gas", "picky"),
    Person("Siobhán O’Rourke", _phone(104), "85013", "hvac gas", "friendly", max_open_jobs=3),
    Person("Đặng Thị Minh Châu", _phone(105), "85204", "plumbing electrical", "eager"),
    Person("Aleksandr Wiśniewski", _phone(106), "85301", "plumbing hvac gas", "declines"),
    Person(
        "Maximiliana Alejandra Fernández de Córdoba y Villanueva del Río Guadalquivir",
        _phone(107), "85018", "electrical hvac", "listens_twice", max_open_jobs=3,
    ),
    Person("Tāwhiri Ngata", _phone(108), "85044", "plumbing", "ignores"),
    Person("محمد الأحمدي", _phone(109), "85224", "hvac electrical gas", "friendly"),
    Person("Jürgen Großmann-Löwe", _phone(110), "85382", "plumbing gas", "eager", radius_m=25_000),
    Person("Priyanka Venkataraghavan", _phone(111), "85254", "hvac", "picky", max_open_jobs=3),
    Person("佐藤 健太", _phone(112), "85226", "electrical", "friendly", max_open_jobs=3),
    Person("Hózhó Begaye", _phone(113), "85257", "plumbing hvac", "hangs_up"),
    Person("Oluwaseun Adébáyò", _phone(114), "85042", "plumbing gas hvac", "friendly"),
    Person("Bjørn Ødegård", _phone(115), "85308", "hvac electrical", "busy"),
    Person("Leilani Kahananui", _phone(116), "85142", "plumbing hvac", "eager"),
    Person("Tomasz Szczęsny", _phone(117), "85338", "plumbing electrical", "friendly"),
    Person("Guðrún Þórsdóttir", _phone(118), "85395", "hvac gas", "voicemail"),
    Person("Mary-Jo Whitehorse", _phone(119), "85225", "plumbing gas", "eager", (EVERY_DAY, DAY)),
    Person("Esperanza Quintanilla", _phone(120), "85031", "hvac plumbing", "eager", (EVERY_DAY, EVENING)),
    Person("Dmytro Kovalchuk", _phone(121), "85340", "electrical", "friendly", (WEEKDAYS, DAY)),
    Person("Nguyễn Văn An", _phone(122), "85201", "plumbing hvac", "friendly", (EVERY_DAY, NIGHT)),
    Person("Amara Diallo", _phone(123), "85206", "hvac gas electrical", "eager", on_duty=False),
    Person("Sam Lee", _phone(124), "85007", "plumbing", "sends_away", radius_m=8_000, max_open_jobs=1),
    Person("Zainab Al-Rashid", _phone(127), "85021", "plumbing gas electrical", "eager", max_open_jobs=3),
    Person("Lucas van der Berg", _phone(128), "85283", "hvac gas plumbing", "eager", max_open_jobs=3),
    Person("Anjali Krishnamurthy", _phone(129), "85032", "electrical hvac", "eager", max_open_jobs=3),
    Person("Marek Novák", _phone(130), "85210", "plumbing electrical hvac", "friendly", max_open_jobs=3),
    Person("Inés Etxeberria", _phone(125), "85701", "plumbing hvac gas", "friendly", max_open_jobs=3),
    Person("Rashad Freeman", _phone(126), "85719", "electrical plumbing", "picky",
           (WEEKDAYS, DAY), time_zone="America/Denver"),
    # The only well technicians, each alone in a remote town, and both answer too late.
    Person("Ruth Yazzie", _phone(131), "85331", "wells", "answers_late", radius_m=6_000, max_open_jobs=3),
    Person("Gabriel Montoya", _phone(132), "85390", "wells", "answers_late", radius_m=6_000, max_open_jobs=3),
)  # fmt: skip

LINES = ("+14805550100", "+14805550101", "+14805550102")
RUN_LINES = ("+16235550100", "+16235550101", "+16235550102")

OTHER_SKILLS = {"locks": "Locks", "glass": "Glass"}
OTHER_SERVICES = (
    Service("lockout", "Lock-out", ("locks",)),
    Service("broken-window", "Broken window", ("glass",)),
)
OTHER_TECHNICIANS = (
    Person("Renée Baptiste", "+17025550101", "89101", "locks glass"),
    Person("Kaito Yamamoto", "+17025550102", "89109", "locks", "picky"),
    Person("Ana-Lucía Peña", "+17025550103", "89014", "glass", "eager"),
)
OTHER_LINES = ("+17025550190",)
