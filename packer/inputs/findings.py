"""Findings: unusable inputs and notes for the user, collected while the inputs of a conversion are listed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from packer.errors import SourceError
from packer.path_text import compose, show_differences


@dataclass
class Findings:
    """Findings about the inputs of a conversion, shared by all readers of its sources.

    skip: record unusable inputs (on_error="skip"); if False the first unusable input raises.
    """

    skip: bool = False
    refused: dict[int, str] = field(default_factory=dict)
    """Image index -> why it cannot be packed; continues a sentence that begins with the image's name."""
    unlisted: set[int] = field(default_factory=set)
    """Those of the refused images that a file of labels does not list."""
    skipped: list[dict[str, str]] = field(default_factory=list)
    """Inputs other than images that were left out: {"key", "reason"}."""
    notes: list[str] = field(default_factory=list)
    """Notes for the user, one sentence each."""

    def note(self, *texts: str) -> None:
        """Add notes; empty ones are left out."""
        self.notes += filter(None, texts)

    def refuse(self, image: int, reason: str, error: str) -> None:
        """Refuse an image; raise SourceError unless `skip`.

        error: text of the SourceError, to which ", or pass on_error='skip'." is appended.
        """
        self._check(error)
        self.refused.setdefault(image, reason)

    def refuse_unlisted(
        self, images: Sequence[int], keys: Sequence[str], reason: str, error: str, rule: str
    ) -> None:
        """Refuse images that a file does not list. reason: see `refuse`.

        error: what is said before the name of the first of them; rule: after it, with the remedy.
        """
        more = f" and {len(images) - 1:,} more" if len(images) > 1 else ""
        for image in images:
            self.refuse(image, reason, f"{error} {keys[image]}{more}; {rule}")
        self.unlisted.update(images)

    def refuse_file(self, image: int, called: str, path: str, error: SourceError) -> None:
        """Refuse the image of an unreadable label file."""
        said = str(error)
        self.refuse(image, f"{called}: {said.removeprefix(path).lstrip(': ')}", said.removesuffix("."))

    def compose_classes(self, names: Iterable[str]) -> dict[str, str]:
        """Return name -> the form in which it is a class; note two names that become equal."""
        forms = {name: compose(name) for name in names}
        first: dict[str, str] = {}
        for name, form in forms.items():
            if first.setdefault(form, name) != name:
                alike = " and ".join(map(show_differences, (first[form], name)))
                self.note(f"The classes {alike} differ only in Unicode form; they are one class.")
                break
        return forms

    def leave_out(self, key: str, reason: str, error: str) -> None:
        """Leave out an input that is not an image. error: see `refuse`."""
        self._check(error)
        self.skipped.append({"key": key, "reason": reason})

    def none_used(self, before: int, what: str) -> str:
        """Return what is wrong if all inputs since the first `before` ones were left out; "" if none was."""
        skipped = self.skipped[before:]
        first = f"the first, {skipped[0]['key']}: {skipped[0]['reason']}" if skipped else ""
        return f"none of its {len(skipped):,} {what}; {first}" if skipped else ""

    def _check(self, error: str) -> None:
        if not self.skip:
            raise SourceError(f"{error}, or pass on_error='skip'.")
