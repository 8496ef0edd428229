"""The pointer's six keys and its token."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch.core import clock
from dispatch.outbox.pointer import BadPointer, BadToken, MessagePointer, check_token, group_hash, make_token

from .conftest import Make


def soon(seconds: float = 60) -> Any:
    return clock.now() + timedelta(seconds=seconds)


class TestPointer:
    def test_it_has_exactly_the_six_keys(self, make_pointer: Make) -> None:
        pointer = make_pointer(message=12)
        said = json.loads(pointer.to_json())
        assert list(said) == [
            "id",
            "poolCode",
            "authToken",
            "mediationType",
            "mediationTarget",
            "messageGroupId",
        ]
        assert (said["id"], said["mediationType"]) == ("12", "HTTP")
        assert MessagePointer.from_json(pointer.to_json()) == pointer
        assert MessagePointer.from_json(pointer.to_json().encode()) == pointer

    @pytest.mark.parametrize(
        "text",
        ["", "null", "[]", "7", '"id"', "{", b"\xff\xfe", "[" * 100_000, "NaN", '{"id": "1"}', "x" * 20_000],
    )
    def test_pointer_must_be_an_object_of_six_strings(self, text: Any) -> None:
        with pytest.raises(BadPointer):
            MessagePointer.from_json(text)

    @pytest.mark.parametrize(
        "change",
        [{"id": 1}, {"id": ""}, {"id": None}, {"extra": "x"}, {"mediationType": "SMTP"}, {"authToken": ["x"]},
         {"poolCode": {}}, {"messageGroupId": False}],
    )  # fmt: skip
    def test_one_invalid_member_invalidates_the_pointer(self, make_pointer: Make, change: dict[str, Any]) -> None:
        said = {**json.loads(make_pointer().to_json()), **change}
        with pytest.raises(BadPointer):
            MessagePointer.from_json(json.dumps(said))

    @given(st.text(max_size=200) | st.binary(max_size=200))
    def test_nothing_else_is_ever_raised(self, junk: str | bytes) -> None:
        with pytest.raises(BadPointer):
            MessagePointer.from_json(junk)


class TestGroupHash:
    def test_parts_are_kept_apart(self) -> None:
        assert group_hash(1, 23, "a") != group_hash(12, 3, "a")
        assert group_hash("a", "b") != group_hash("a,b") != group_hash('a","b')
        assert group_hash(1, 2, "a") == group_hash("1", "2", "a")

    def test_it_fits_a_message_group_id(self) -> None:
        assert len(group_hash(1, 2, "é" * 500)) == 64
        assert group_hash("x").isalnum()


class TestToken:
    def test_token_yields_the_epoch_of_its_message(self) -> None:
        token = make_token(42, 7, soon())
        assert check_token(token, 42) == 7
        assert check_token(token, "42") == 7

    def test_token_is_bound_to_its_message(self) -> None:
        token = make_token(42, 7, soon())
        for other in (43, 4, "042", "42 ", None):
            with pytest.raises(BadToken):
                check_token(token, other)

    def test_token_expires(self) -> None:
        token = make_token(42, 7, soon(60))
        clock.travel(30)
        assert check_token(token, 42) == 7
        clock.travel(32)
        with pytest.raises(BadToken, match="expired"):
            check_token(token, 42)

    def test_no_part_of_it_can_be_altered(self) -> None:
        token = make_token(42, 7, soon())
        epoch, expiry, signature = token.split(".")
        flipped = ("B" if signature[0] != "B" else "C") + signature[1:]
        for wrong in (
            f"8.{expiry}.{signature}",
            f"{epoch}.{int(expiry) + 1}.{signature}",
            f"{epoch}.{expiry}.{flipped}",
            f"{epoch}.{expiry}.{signature[:-1]}",
            f"{epoch}.{expiry}.",
            f"0{epoch}.{expiry}.{signature} ",
            f"{epoch}{expiry}..{signature}",
        ):
            with pytest.raises(BadToken):
                check_token(wrong, 42)

    @given(st.text(max_size=250))
    def test_junk_is_not_a_token(self, junk: str) -> None:
        with pytest.raises(BadToken):
            check_token(junk, 42)

    @pytest.mark.parametrize("junk", [None, 7, b"7.8.9", ["7"], "7.8.\udcff", "٧.8.x", "9" * 150 + ".1.x"])
    def test_non_text_token_is_invalid(self, junk: Any) -> None:
        with pytest.raises(BadToken):
            check_token(junk, 42)

    def test_keys_rotate_without_a_gap(self, settings: Any) -> None:
        settings.OUTBOX_TOKEN_KEYS = ["old key"]
        before = make_token(42, 1, soon())
        settings.OUTBOX_TOKEN_KEYS = ["new key", "old key"]
        between = make_token(42, 2, soon())
        assert (check_token(before, 42), check_token(between, 42)) == (1, 2)
        settings.OUTBOX_TOKEN_KEYS = ["new key"]
        assert check_token(between, 42) == 2
        with pytest.raises(BadToken):
            check_token(before, 42)

    def test_token_keys_default_to_the_secret_key(self, settings: Any) -> None:
        settings.OUTBOX_TOKEN_KEYS = []
        token = make_token(42, 1, soon())
        settings.SECRET_KEY = "another one altogether"
        with pytest.raises(BadToken):
            check_token(token, 42)
