"""Checks of points: which of them are left and right sides, and exchange their numbers in mirrored images."""

from __future__ import annotations

from collections.abc import Iterator

from packer import units
from packer.inputs.file_names import shorten
from packer.inputs.listing import Finding, Listing
from packer.inputs.point_names import exchanged, sides
from packer.sentence import Option, Sentence

_EXAMPLES = 3


def check_sides(listing: Listing) -> Iterator[Finding]:
    """Yield a note on sides that were found by their names, or on several points without any."""
    about = next((f.about for f in listing.targets.fields if f.name == "keypoints"), {})
    names, pairs = about.get("points", ()), [*map(tuple, about.get("flip_pairs", ()))]
    none = Option("Labels.flip_pairs", "none")
    if pairs and pairs == list(sides(names)):
        held = {name for pair in pairs for name in pair}
        lone = [name for name in names if name not in held and exchanged(name) != name]
        more = f"; {shorten(', '.join(lone))} has no partner" if lone else ""
        shown = ", ".join(map(":".join, pairs[:_EXAMPLES])) + (", ..." if len(pairs) > _EXAMPLES else "")
        yield Finding(
            Sentence(
                f"Points that are sides by their names exchange their numbers in mirrored images: "
                f"{units.count(len(pairs), 'pair')} of {len(names):,} points ({shorten(shown)}){more}. Pass "
                f"{none} if they are no sides."
            )
        )
    elif len(names) > 1 and "flip_pairs" not in about:
        first = Option("Labels.flip_pairs", f"{names[0]}:{names[1]}")
        yield Finding(
            Sentence(
                f"The names of the {len(names):,} points ({shorten(', '.join(names))}) say no sides, so in "
                "mirrored images each keeps its number. If some are sides, such as left and right eye, pass them,"
                f" for example {first}; if none are, {none}."
            )
        )
