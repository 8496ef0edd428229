"""The location and the time zones of a lead."""

from hypothesis import given, settings
from hypothesis import strategies as st

from dispatch.leads.rules.geography import area_of, country_of, plausible_zones, states_of, zones_of


def test_country_is_derived_from_the_number():
    assert [country_of(number) for number in ("+16025550100", "+14165550100", "+442079460018", "+999")] == [
        "US", "CA", "GB", "",
    ]  # fmt: skip


def test_an_area_reaches_into_every_state_it_borders():
    assert states_of("+18505550100", None, None) >= {"FL"}
    assert states_of("+16025550100", None, None) == {"AZ"}
    assert states_of("+14165550100", None, None) == frozenset()


def test_a_number_of_no_area_may_be_in_any_state():
    assert {"FL", "TX", "WA"} <= states_of("+18005550100", None, None)


def test_a_position_is_in_one_state_and_its_zone():
    assert states_of("+18005550100", 30.42, -87.21) == {"FL"}
    assert zones_of("+18005550100", 30.42, -87.21) == ("America/Chicago",)


def test_an_area_code_in_two_zones_has_both_whatever_the_exchange_says():
    assert plausible_zones("+18505550100") == ("America/Chicago", "America/New_York")


def test_an_area_code_in_one_zone_has_one():
    assert plausible_zones("+16025550100") == ("America/Phoenix",)


def test_a_toll_free_number_may_be_anywhere_on_the_continent():
    zones = plausible_zones("+18005550100")
    assert {"America/New_York", "Pacific/Honolulu", "America/Anchorage"} <= set(zones)


def test_a_country_with_one_zone_has_that_one():
    assert plausible_zones("+442079460018") == ("Europe/London",)


def test_a_country_with_many_zones_has_those_of_the_longest_known_beginning():
    assert plausible_zones("+61255501234") == plausible_zones("+61255509999")
    assert "Australia/Sydney" in plausible_zones("+61255501234")


def test_invalid_number_has_no_time_zone():
    assert plausible_zones("+999") == ()


@given(area=st.integers(200, 999), numbers=st.tuples(*[st.integers(0, 9_999_999)] * 2))
@settings(max_examples=300, deadline=None)
def test_all_numbers_of_an_area_are_in_the_same_place(area: int, numbers: tuple[int, int]) -> None:
    one, other = (f"+1{area}{number:07d}" for number in numbers)
    assert area_of(one) == area_of(other)
    for locate in (country_of, plausible_zones, lambda phone: states_of(phone, None, None)):
        assert locate(one) == locate(other)
