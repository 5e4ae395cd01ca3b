"""Durations and sizes as a plan writes them.

Owns the grammar of durations and the forms that Slurm wants; sizes are read as the proxy reads them.
Pure: refuses to know where a text came from.
"""

from __future__ import annotations

import re

from proxy.units import parse_size

_UNIT_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(ms|s|m|h|d)", re.ASCII)
_CLOCK = re.compile(r"(?:(\d{1,4})-)?(\d{1,4}):([0-5]\d):([0-5]\d)", re.ASCII)


def parse_duration(text: str) -> float:
    """Read "10s", "1.5m", "2h", "1d", "HH:MM:SS" or "D-HH:MM:SS" as seconds.

    Raises ValueError with a reason for a person. "MM:SS" is refused because Slurm and people read it differently.
    """
    if match := _DURATION.fullmatch(text):
        return float(match[1]) * _UNIT_SECONDS[match[2]]
    if match := _CLOCK.fullmatch(text):
        days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
        return float(days * 86400 + hours * 3600 + minutes * 60 + seconds)
    raise ValueError(f'{text!r} is not a duration: write "30s", "15m", "2h" or "HH:MM:SS"')


def parse_memory(text: str) -> int:
    """Read "40GiB" or "500MB" as bytes. Raises ValueError; less than 1 MiB is taken for a forgotten unit."""
    try:
        size = parse_size(text)
    except ValueError as error:
        raise ValueError(f"{text!r} {error}") from None
    if size < 2**20:
        raise ValueError(f'{text!r} is less than 1 MiB: write a unit, as in "512MiB" or "40GiB"')
    return size


def slurm_time(seconds: float) -> str:
    """Write seconds as Slurm's D-HH:MM:SS (without the day when it is zero), rounded up to a whole second."""
    whole = int(-(-seconds // 1))
    days, rest = divmod(whole, 86400)
    clock = f"{rest // 3600:02}:{rest % 3600 // 60:02}:{rest % 60:02}"
    return f"{days}-{clock}" if days else clock


def slurm_mebibytes(size: int) -> str:
    """Write bytes as Slurm's "512M" (its M is 1024 * 1024), rounded up so that nothing asked for is lost."""
    return f"{-(-size // 2**20)}M"


def human_duration(seconds: float) -> str:
    """Write seconds for a person: "12.3s", "2m 05s", "1h 04m"."""
    if seconds < 60:
        return f"{seconds:g}s" if seconds == int(seconds) else f"{seconds:.1f}s"
    whole = int(seconds)
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02}s"
    return f"{whole // 3600}h {whole % 3600 // 60:02}m"
