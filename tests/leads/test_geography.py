"""The location of a lead."""

from dispatch.leads.rules.geography import country_of, states_of, zones_of


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
