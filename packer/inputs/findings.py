"""Findings: what cannot be packed, and what the user should know, collected while the inputs of a conversion are listed."""

from __future__ import annotations

from dataclasses import dataclass, field

from packer.errors import SourceError
from packer.sentence import Option


@dataclass
class Findings:
    """Findings about the inputs of a conversion; one object for all that lists them.

    skip: note what cannot be packed; else the first such input is an error.
    """

    skip: bool = False
    refused: dict[int, str] = field(default_factory=dict)
    """Image -> why it cannot be packed, in words that follow its name."""
    skipped: list[dict[str, str]] = field(default_factory=list)
    """Inputs that are no images and were left out: {"key", "reason"}."""
    notes: list[str] = field(default_factory=list)
    """What the user may not expect, a sentence each."""

    def refuse(self, image: int, reason: str, error: str) -> None:
        """Refuse an image. error: the sentence that is raised instead, up to its remedy, unless such images are skipped."""
        self._check(error)
        self.refused.setdefault(image, reason)

    def leave_out(self, key: str, reason: str, error: str) -> None:
        """Leave out an input that is no image. error: as `refuse` has it."""
        self._check(error)
        self.skipped.append({"key": key, "reason": reason})

    def _check(self, error: str) -> None:
        if not self.skip:
            raise SourceError(f"{error}, or pass {Option('on_error', 'skip')}.")
