"""Orders release numbers, and narrows a release from the wordings that it used."""

from __future__ import annotations

import re
from collections.abc import Iterable

_RELEASE = re.compile(r"\d+(?:\.\d+)*(?:\.post\d+)?")


def release_key(version: str) -> tuple[int, ...]:
    """A sort key: `0.5.10.post1` is later than `0.5.10`; what follows (rc1, +local) does not
    count."""
    match = _RELEASE.search(version)
    numbers = [int(part) for part in re.findall(r"\d+", match[0])] if match else []
    return tuple(numbers)


def narrowed(ranges: Iterable[str]) -> tuple[str, str] | None:
    """The releases, first and last, that lie in all ranges `A … B`; None when there are none, or no
    range at all."""
    low, high = "", ""
    for span in ranges:
        first, _, last = (part.strip() for part in span.partition("…"))
        if not last:
            continue
        low = max(low, first, key=release_key) if low else first
        high = min(high, last, key=release_key) if high else last
    if not low or release_key(low) > release_key(high):
        return None
    return low, high
