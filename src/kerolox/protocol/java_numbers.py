"""The bounds of Java's numbers, and numbers in texts, read as Java reads them."""

from __future__ import annotations

INT_MAX = (1 << 31) - 1
LONG_MAX = (1 << 63) - 1
LONG_MIN = -(1 << 63)
_DIGITS_MAX = len(str(LONG_MAX))


def java_long(text: str) -> int | None:
    """``Long.parseLong``: an optional sign and digits, without blanks or underscores. Digits of
    other scripts, which Java takes, are refused. None: Java has a ``NumberFormatException``.
    """
    digits = text[1:] if text[:1] in ("+", "-") else text
    if not digits.isascii() or not digits.isdigit():
        return None
    digits = digits.lstrip("0") or "0"
    if len(digits) > _DIGITS_MAX:
        return None
    number = -int(digits) if text[0] == "-" else int(digits)
    return number if LONG_MIN <= number <= LONG_MAX else None
