"""The time zones of a number, from its digits."""

from dispatch.leads.rules.geography import plausible_zones


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
