"""Draw the demo customers: names, fictional phone numbers, and addresses with real ZIP codes."""

from __future__ import annotations

import random
from dataclasses import dataclass

from dispatch.core.zips import zip_position

FIRST = (
    "Amelia", "Benjamin", "Camila", "Darnell", "Elena", "Farid", "Grace", "Hiroshi", "Ingrid", "Jamal", "Kateryna",
    "Luis", "Mónica", "Nathaniel", "Olga", "Priscilla", "Quentin", "Rosalind", "Sergio", "Tamika", "Ursula",
    "Vikram", "Wendy", "Ximena", "Yusuf", "Zoë", "Håkon", "Mei", "Oisín", "Noura",
)  # fmt: skip
LAST = (
    "Abernathy", "Benally", "Castellanos", "Delacroix", "Eriksson", "Fitzgerald", "Gutiérrez", "Holloway",
    "Ibáñez", "Jankowski", "Kapoor", "Lindqvist", "Montgomery", "Nakamura", "O’Sullivan", "Pham", "Quiñones",
    "Rosenthal", "Saldívar", "Thibodeaux", "Underwood", "Villalobos", "Whitaker", "Yellowhair", "Zimmerman",
)  # fmt: skip
# (street, town, ZIP code, weight)
PLACES = (
    ("N 7th Ave", "Phoenix", "85013", 6), ("E Camelback Rd", "Phoenix", "85016", 6),
    ("W Thomas Rd", "Phoenix", "85015", 5), ("E Indian School Rd", "Phoenix", "85018", 5),
    ("S Central Ave", "Phoenix", "85042", 5), ("E Ray Rd", "Phoenix", "85044", 4),
    ("N Tatum Blvd", "Phoenix", "85032", 5), ("W Bell Rd", "Glendale", "85308", 4),
    ("W Peoria Ave", "Glendale", "85302", 3), ("W Cactus Rd", "Peoria", "85345", 3),
    ("N Scottsdale Rd", "Scottsdale", "85251", 5), ("E Shea Blvd", "Scottsdale", "85260", 3),
    ("E Main St", "Mesa", "85201", 5), ("S Power Rd", "Mesa", "85206", 4),
    ("E Baseline Rd", "Tempe", "85283", 4), ("S Mill Ave", "Tempe", "85281", 4),
    ("W Chandler Blvd", "Chandler", "85226", 4), ("S Arizona Ave", "Chandler", "85225", 4),
    ("S Gilbert Rd", "Gilbert", "85296", 4), ("E Warner Rd", "Gilbert", "85234", 3),
    ("W McDowell Rd", "Goodyear", "85395", 2), ("W Van Buren St", "Avondale", "85323", 2),
    ("N Litchfield Rd", "Surprise", "85374", 2), ("E Ocotillo Rd", "Queen Creek", "85142", 2),
    ("E Speedway Blvd", "Tucson", "85716", 2),
)  # fmt: skip
AREA_CODES = ("602", "623", "520", "928")
COUNT = 320


@dataclass(frozen=True)
class Customer:
    """Describe a customer. Positions are degrees."""

    name: str
    phone: str
    address: str
    lat: float
    lng: float


def draw_customers(chance: random.Random) -> list[Customer]:
    """Return the customers. No two share a phone number, and none has a demo technician's."""
    phones = [f"+1{area}555{n:04d}" for area in AREA_CODES for n in range(100, 200) if area != "602" or n > 150]
    chance.shuffle(phones)
    weights = [place[3] for place in PLACES]
    customers = []
    for phone in phones[:COUNT]:
        street, town, code, _ = chance.choices(PLACES, weights)[0]
        position = zip_position(code)
        assert position is not None, code
        customers.append(
            Customer(
                f"{chance.choice(FIRST)} {chance.choice(LAST)}",
                phone,
                f"{chance.randrange(100, 9900)} {street}, {town}, AZ {code}",
                round(position[0] + chance.uniform(-0.02, 0.02), 5),
                round(position[1] + chance.uniform(-0.02, 0.02), 5),
            )
        )
    return customers
