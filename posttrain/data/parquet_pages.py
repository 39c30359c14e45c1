"""Compute the unpacked size of a parquet column's pages from their headers.

A header is a struct in Thrift's compact protocol. Its second field is the unpacked size, its third the packed one. The
sizes in the footer may be wrong, and the library unpacks what the pages contain.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO, Final

_WINDOW: Final = 2**20
"""Maximum number of bytes of a header."""
_DEEPEST: Final = 16
_NUMBERS: Final = (4, 5, 6)


def page_sizes(stream: BinaryIO, start: int, length: int) -> Iterator[int]:
    """Yield the unpacked bytes of each page of a column chunk. Raise ValueError if a header is damaged."""
    place, end = start, start + length
    while place < end:
        stream.seek(place)
        header = _Header(stream.read(min(4096, end - place)))
        try:
            fields = header.fields()
        except IndexError:
            stream.seek(place)
            header = _Header(stream.read(min(_WINDOW, end - place)))
            try:
                fields = header.fields()
            except IndexError as error:
                raise ValueError("the header of a page is damaged") from error
        unpacked, packed = fields.get(2, -1), fields.get(3, -1)
        if unpacked < 0 or not 0 <= packed <= end - place - header.place:
            raise ValueError("the header of a page is damaged")
        yield unpacked
        place += header.place + packed


class _Header:
    """Reads a struct from bytes. Raises IndexError if they end too early."""

    def __init__(self, data: bytes) -> None:
        self._data, self.place = data, 0

    def fields(self, depth: int = 0) -> dict[int, int]:
        """Return the struct's numbers by field, and skip other fields."""
        if depth > _DEEPEST:
            raise ValueError("the header of a page is nested too deeply")
        numbers, field = dict[int, int](), 0
        while byte := self._byte():
            field = field + (byte >> 4) if byte >> 4 else self._number()
            if byte & 15 in _NUMBERS:
                numbers[field] = self._number()
            else:
                self._pass(byte & 15, depth)
        return numbers

    def _pass(self, kind: int, depth: int) -> None:
        """Skip the value of a field."""
        match kind:
            case 1 | 2:  # a bool, which is its kind
                pass
            case 3:
                self._byte()
            case 4 | 5 | 6:
                self._number()
            case 7:
                self._skip(8)
            case 8:
                self._skip(self._varint())
            case 9 | 10:
                head = self._byte()
                for _ in range(head >> 4 if head >> 4 < 15 else self._varint()):
                    self._pass(3 if head & 15 in (1, 2) else head & 15, depth + 1)
            case 12:
                self.fields(depth + 1)
            case _:
                raise ValueError("the header of a page is damaged")

    def _byte(self) -> int:
        byte = self._data[self.place]
        self.place += 1
        return byte

    def _skip(self, count: int) -> None:
        self.place += count
        if self.place > len(self._data):
            raise IndexError

    def _varint(self) -> int:
        value = shift = 0
        while (byte := self._byte()) & 128 and shift < 63:
            value, shift = value | (byte & 127) << shift, shift + 7
        return value | byte << shift

    def _number(self) -> int:
        value = self._varint()
        return value >> 1 ^ -(value & 1)
