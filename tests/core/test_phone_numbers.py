"""Parse phone numbers from files, forms and API clients."""

from __future__ import annotations

import pytest

from dispatch.core.phone_numbers import InvalidPhone, parse_phone, parse_possible_phone

NOT_PHONES = ["banana", "n/a", "-", "", "   ", "12", "+", "+999", "()", "0" * 500, "\x01", "1e999", "²²²²²²²²²²"]


@pytest.mark.parametrize("text", NOT_PHONES)
@pytest.mark.parametrize("region", ["US", "", "XX"])
@pytest.mark.parametrize("parse", [parse_phone, parse_possible_phone])
def test_invalid_phone_is_rejected_with_a_reason(parse, text, region):
    with pytest.raises(InvalidPhone, match=r"is not a valid phone number\. Write it as \+1602"):
        parse(text, region)


@pytest.mark.parametrize("text", ["(602) 255-0123", "602.255.0123", " +1 602 255 0123 ", "+16022550123"])
def test_a_national_number_is_read_in_the_region(text):
    assert parse_phone(text, "US").as_e164 == "+16022550123"


def test_a_number_without_plus_needs_a_region():
    with pytest.raises(InvalidPhone):
        parse_phone("602 255 0123", "")
    assert parse_phone("+1 602 255 0123", "").as_e164 == "+16022550123"


def test_a_possible_number_need_not_be_assigned():
    assert parse_possible_phone("602 055 0123", "US").as_e164 == "+16020550123"
    with pytest.raises(InvalidPhone):
        parse_phone("602 055 0123", "US")
