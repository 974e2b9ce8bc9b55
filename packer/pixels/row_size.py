"""The size of a pack's rows of images: one for all, or a rule for the size of each uncropped picture.

    given            rows
    256, "128x256"   one height and width for all, filled according to PixelSpec.fit
    "keep"           each picture's size
    "max=512"        longest side at most that
    "min=256"        shortest side at most that

A rule keeps the aspect ratio and never enlarges. The other side is rounded down, as in torchvision's Resize,
but never to 0.
"""

from __future__ import annotations

from operator import index
from typing import Any, NamedTuple, SupportsIndex

from packer.errors import UsageError
from packer.given_values import shown

_LARGEST = 1 << 16
_LIMITS = {"max": "longest", "min": "shortest"}


class RowSize(NamedTuple):
    """The rule for the height and width of a row; create it with `parse` or `from_record`.

    rule: "one", "keep", "max" or "min"; height, width: those of every row for "one"; the limit, twice, for
    "max" and "min"; else 1.
    """

    rule: str
    height: int = 1
    width: int = 1

    @classmethod
    def parse(cls, size: int | str | tuple[int, int]) -> RowSize:
        """Return the rule for a user's value. Raises UsageError."""
        if size == "keep":
            return cls("keep")
        rule, equals, side = str(size).partition("=") if isinstance(size, str) else ("", "", "")
        if not equals:
            return cls("one", *parse_size(size))
        try:
            limit = _side(side)
        except ValueError:
            limit = 0
        if rule not in _LIMITS or not limit:
            raise UsageError(
                f"size {_text(size)}: is neither max=N, the longest side in pixels, nor min=N, the shortest, "
                "of at"
                f" most {_LARGEST:,}."
                " Pass for example max=512."
            )
        return cls(rule, limit, limit)

    @classmethod
    def from_record(cls, size: Any) -> RowSize:
        """Return the rule for a pack's record: [height, width] or a text."""
        if isinstance(size, str):
            return cls.parse(size)
        height, width = size
        return cls("one", int(height), int(width))

    @property
    def option(self) -> list[int] | str:
        """The pack's record of the rule: [height, width] or a text."""
        if self.rule == "one":
            return [self.height, self.width]
        return f"{self.rule}={self.height}" if self.limits else self.rule

    @property
    def ragged(self) -> bool:
        """True if rows differ in size."""
        return self.rule != "one"

    @property
    def limits(self) -> bool:
        """True if larger pictures shrink and keep their aspect ratio."""
        return self.rule in _LIMITS

    @property
    def words(self) -> str:
        """The rule in words, for rows that differ in size."""
        return f"{_LIMITS[self.rule]} side at most {self.height}" if self.limits else "their own size"

    def row_sides(self, height: int, width: int) -> tuple[int, int]:
        """Return (height, width) of the row of an upright picture.

        >>> RowSize.from_record("max=512").row_sides(1000, 750)
        (512, 384)
        >>> RowSize.from_record("min=256").row_sides(1000, 750)
        (341, 256)
        """
        if self.rule == "one":
            return self.height, self.width
        side = max(height, width) if self.rule == "max" else min(height, width)
        if not self.limits or side <= self.height:
            return height, width
        return max(1, height * self.height // side), max(1, width * self.height // side)

    def ratio(self, height: int, width: int) -> float:
        """Return the pixels of an upright, uncropped picture per pixel of its row, on the axis with fewer."""
        rows, columns = self.row_sides(height, width)
        return min(height / rows, width / columns)

    def usual_bytes(self, given: int) -> int:
        """Return the approximate bytes of a row as a JPEG file. given: average bytes of the source files."""
        return min(given, self.height * self.width // 4 + 1) if self.limits else given


def parse_size(size: int | str | tuple[int, int]) -> tuple[int, int]:
    """Return (height, width) from 256, "256", "128x256" or (128, 256). Raises UsageError."""
    try:
        given = (
            size.lower().split("x")
            if isinstance(size, str)
            else [size]
            if isinstance(size, SupportsIndex)
            else size
        )
        sides = [_side(side) for side in given]
        height, width = sides * 2 if len(sides) == 1 else sides
    except (ValueError, TypeError):
        raise UsageError(
            f"size {_text(size)}: is not a number or HxW of 1 to {_LARGEST:,} pixels. Pass for example 256 or"
            " 128x256."
        ) from None
    return height, width


def _text(size: object) -> str:
    return size if isinstance(size, str) else shown(size)


def _side(given: str | SupportsIndex) -> int:
    side = int(given) if isinstance(given, str) else index(given)
    if not 1 <= side <= _LARGEST:
        raise ValueError
    return side
