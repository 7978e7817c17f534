"""Which half messages were ended, by their offsets in the half queue: one bit each."""

from __future__ import annotations

SPAN = 1 << 16

_SPAN_BYTES = SPAN // 8


class EndedHalves:
    """A set of queue offsets. What lies together takes one bit an offset at most, and a span of
    which all are in the set takes none: a queue that is ended in its order costs nothing."""

    def __init__(self) -> None:
        """Nothing is in it."""
        self._spans: dict[int, tuple[bytearray, int]] = {}
        """Number of a span → its bits, and how many are set."""
        self._full: set[int] = set()

    def __contains__(self, offset: int) -> bool:
        """Whether an offset was added, and not dropped."""
        number, place = divmod(offset, SPAN)
        span = self._spans.get(number)
        if span is None:
            return number in self._full
        return bool(span[0][place >> 3] & 1 << (place & 7))

    def add(self, offset: int) -> bool:
        """Add an offset; False when it is in the set already."""
        number, place = divmod(offset, SPAN)
        if number in self._full:
            return False
        bits, count = self._spans.get(number) or (bytearray(_SPAN_BYTES), 0)
        bit = 1 << (place & 7)
        if bits[place >> 3] & bit:
            return False
        if count + 1 == SPAN:
            self._full.add(number)
            self._spans.pop(number, None)
            return True
        bits[place >> 3] |= bit
        self._spans[number] = bits, count + 1
        return True

    def add_run(self, first: int, count: int) -> None:
        """Add offsets that follow each other."""
        offset, end = first, first + count
        while offset < end:
            number, place = divmod(offset, SPAN)
            size = min(end - offset, SPAN - place)
            if size == SPAN and number not in self._full:
                self._spans.pop(number, None)
                self._full.add(number)
            elif number not in self._full:
                self._add_part(number, place, size)
            offset += size

    def _add_part(self, number: int, place: int, size: int) -> None:
        bits, _count = self._spans.get(number) or (bytearray(_SPAN_BYTES), 0)
        start, stop = place >> 3, (place + size + 7) >> 3
        added = ((1 << size) - 1) << (place & 7)
        part = int.from_bytes(bits[start:stop], "little") | added
        bits[start:stop] = part.to_bytes(stop - start, "little")
        set_bits = int.from_bytes(bits, "little").bit_count()
        if set_bits == SPAN:
            self._full.add(number)
            self._spans.pop(number, None)
        else:
            self._spans[number] = bits, set_bits

    def count_from(self, offset: int, end: int, *, is_in: bool) -> int:
        """How many offsets from one on, before ``end``, are all in the set, or all not."""
        first = offset
        while offset < end:
            number, place = divmod(offset, SPAN)
            size = min(end - offset, SPAN - place)
            same = self._same_from(number, place, size, is_in=is_in)
            offset += same
            if same < size:
                break
        return offset - first

    def _same_from(self, number: int, place: int, size: int, *, is_in: bool) -> int:
        span = self._spans.get(number)
        if span is None:
            return size if (number in self._full) == is_in else 0
        part = int.from_bytes(span[0][place >> 3 : (place + size + 7) >> 3], "little")
        part >>= place & 7
        # The lowest bit that is not as asked for.
        other = ~part if is_in else part
        lowest = (other & -other).bit_length() - 1
        return size if lowest < 0 else min(lowest, size)

    def drop_below(self, offset: int) -> None:
        """Forget the spans that end at an offset or before it."""
        first = offset // SPAN
        for number in [each for each in self._spans if each < first]:
            del self._spans[number]
        self._full = {each for each in self._full if each >= first}

    @property
    def bytes_used(self) -> int:
        """Bytes of the bits that are kept."""
        return len(self._spans) * _SPAN_BYTES
