"""Sizes as people write them ("100MiB"). Knows nothing of options, files or errors for people beyond the reason."""

from __future__ import annotations

import re

_UNITS = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}
_SIZE = re.compile(r"(\d{1,18})(?:\.(\d{1,9}))?(?: ?([A-Za-z]+))?", re.ASCII)


def parse_size(text: str) -> int:
    """Return the bytes that `text` names: a number with an optional unit (B, kB … TB, KiB … TiB, in any case).

    A fraction ("1.5MiB") is rounded down to whole bytes. Raises ValueError with a reason that does not repeat `text`.
    """
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ValueError('is not a size such as 65536, "64KiB" or "100MiB"')
    whole, fraction, unit = match[1], match[2] or "", (match[3] or "").lower()
    if unit not in _UNITS:
        raise ValueError("has an unknown unit: use B, KiB, MiB, GiB or TiB (or kB, MB, GB, TB)")
    return int(whole + fraction) * _UNITS[unit] // int(10 ** len(fraction))
