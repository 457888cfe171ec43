"""Sizes and counts as people write them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_mds.units import format_bytes, parse_bytes, parse_count


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (0, 0), (17, 17), ("17", 17), ("17b", 17), ("1kb", 1024), ("1k", 1024), ("64mb", 64 << 20), ("64 MB", 64 << 20),
        (" 1.5gb ", 3 << 29), ("2Tb", 2 << 40), ("1pb", 1 << 50), ("1_000", 1000), ("0.5kb", 512),
    ],
)  # fmt: skip
def test_parse_bytes(text: int | str, expected: int) -> None:
    assert parse_bytes(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"), [(0, 0), (12, 12), ("12", 12), ("100k", 100_000), ("1.5M", 1_500_000), ("0.0001m", 100),
                           ("2b", 2 * 10**9), ("1t", 10**12), ("1_000", 1000)]
)  # fmt: skip
def test_parse_count(text: int | str, expected: int) -> None:
    assert parse_count(text) == expected


@pytest.mark.parametrize("text", ["", "mb", "-1", "1xb", "1 2", "1e3", "１", "1.", ".5", "1..5mb", "1__0", "nan"])
def test_text_of_another_shape_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"^cache_limit must be a number of bytes .*, got "):
        parse_bytes(text, "cache_limit")
    with pytest.raises(ValueError, match=r"^epoch_size must be a whole number .*, got "):
        parse_count(text, "epoch_size")


@pytest.mark.parametrize("parse", [parse_bytes, parse_count])
def test_negative_numbers_are_refused(parse: Any) -> None:
    with pytest.raises(ValueError, match=r"^n must be .*, got -1"):
        parse(-1, "n")


@pytest.mark.parametrize("text", ["1.5", "0.1", "1.0001k"])
def test_a_count_is_whole(text: str) -> None:
    with pytest.raises(ValueError, match="whole number"):
        parse_count(text)


@pytest.mark.parametrize("value", [True, None, 1.5, b"1", [1]])
@pytest.mark.parametrize("parse", [parse_bytes, parse_count])
def test_other_types_are_refused(parse: Any, value: Any) -> None:
    with pytest.raises(TypeError, match=r"^n must be an int .*, got "):
        parse(value, "n")


@pytest.mark.parametrize(
    ("num_bytes", "expected"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KB"),
        (3 << 29, "1.5 GB"),
        (5 << 40, "5.0 TB"),
        (1 << 60, "1048576.0 TB"),
    ],
)
def test_format_bytes(num_bytes: int, expected: str) -> None:
    assert format_bytes(num_bytes) == expected


@given(st.integers(0, 1 << 62))
def test_whole_numbers_come_back(number: int) -> None:
    assert parse_bytes(str(number)) == parse_count(str(number)) == number


@given(st.integers(0, 1 << 55))
def test_what_is_formatted_can_be_parsed_and_is_near(num_bytes: int) -> None:
    parsed = parse_bytes(format_bytes(num_bytes))
    assert abs(parsed - num_bytes) <= 0.05 * num_bytes + 1
