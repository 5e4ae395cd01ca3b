"""Durations and sizes mean what people mean by them."""

from __future__ import annotations

import pytest

from runtime.units import human_duration, parse_duration, parse_memory, slurm_mebibytes, slurm_time


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("10s", 10.0),
        ("1.5m", 90.0),
        ("15m", 900.0),
        ("2h", 7200.0),
        ("1d", 86400.0),
        ("250ms", 0.25),
        ("0s", 0.0),
        ("02:00:00", 7200.0),
        ("00:00:30", 30.0),
        ("100:00:01", 360001.0),
        ("1-02:03:04", 93784.0),
    ],
)
def test_a_duration_is_read(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "10", "s", "-1s", "10 s", "1e3s", "90:00", "1:60:00", "10S", "1h30m", "٣s", "soon"]
)
def test_another_duration_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="15m"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "size"), [("40GiB", 40 * 2**30), ("512MiB", 2**29), ("500MB", 500_000_000), ("1.5 GiB", 3 * 2**29)]
)
def test_a_size_is_read(text: str, size: int) -> None:
    assert parse_memory(text) == size


@pytest.mark.parametrize("text", ["4096", "1KiB", "0GiB", "many", "4 elephants", "-1GiB", ""])
def test_another_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"size|unit"):
        parse_memory(text)


def test_what_slurm_is_asked_for_is_never_less() -> None:
    assert slurm_time(7200) == "02:00:00"
    assert slurm_time(59.1) == "00:01:00"
    assert slurm_time(93784) == "1-02:03:04"
    assert slurm_mebibytes(2**30) == "1024M"
    assert slurm_mebibytes(2**30 + 1) == "1025M"


def test_durations_are_written_for_people() -> None:
    written = [human_duration(seconds) for seconds in (0, 5, 12.34, 60, 125, 3600, 3900)]
    assert written == ["0s", "5s", "12.3s", "1m 00s", "2m 05s", "1h 00m", "1h 05m"]
