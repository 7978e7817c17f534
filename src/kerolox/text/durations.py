"""How long something takes, as people say it."""

from __future__ import annotations

__all__ = ["duration_text"]

_UNITS = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))


def duration_text(milliseconds: float) -> str:
    """The two largest units: ``1 h 59 min``; below a second ``350 ms``.

    Args:
        milliseconds: how long; what is negative counts as nothing.
    """
    left, rest = divmod(max(int(milliseconds), 0), 1_000)
    if not left:
        return f"{rest} ms" if rest else "0 s"
    parts = []
    for unit, seconds in _UNITS:
        number, left = divmod(left, seconds)
        parts.append(f"{number} {unit}" if number else "")
    first = next(index for index, part in enumerate(parts) if part)
    return " ".join(part for part in parts[first : first + 2] if part)
