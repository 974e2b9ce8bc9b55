"""Checks of a sample of image headers: size against --size, bits, color profiles, pages and frames."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from packer.given_values import option_text
from packer.inputs.file_names import examples, shorten
from packer.inputs.listing import Finding, Listing
from packer.pixels.color_profiles import describe, is_srgb
from packer.pixels.row_placement import place

Size = tuple[int, int]


def check_size(listing: Listing) -> Iterator[Finding]:
    """Yield a note on a size that does not suit the images, with one that does."""
    if listing.spec is not None and listing.sized:
        sizes = [(seen.header.height, seen.header.width) for seen in listing.examined.images]
        if note := note_on_size(listing.spec.size, sizes, listing.spec.fit):
            yield Finding(note)


def note_on_size(target: Size, sizes: Sequence[Size], fit: str) -> str:
    """Return a note on the size of the rows, or ""; the size that it advises gives no further note.

    target: (height, width) of the rows. sizes: of the images. fit: as in `place`.

    A size that turns the shape of most images is probably width x height. A size that enlarges most takes
    space without detail. A square that is no power of two is often the crop of training, which is drawn from
    larger rows.
    """
    if not sizes:
        return ""
    height, width = target
    turned = sum((h - w) * (height - width) < 0 for h, w in sizes)
    if 2 * turned > len(sizes):
        rows, images = ("upright", "wider than high") if height > width else ("wide", "higher than wide")
        return (
            f"{_text(target)}: is height x width, so rows are {rows}, but {turned:,} of {len(sizes):,} "
            f"images examined are {images}. If that was not meant, pass "
            f"{_largest((width, height), sizes, fit)}."
        )
    if (enlarged := _enlarged(target, sizes, fit)) >= len(sizes) / 2:
        return (
            f"{enlarged:,} of {len(sizes):,} images examined are smaller than {_text(target)} and are"
            f" enlarged, which adds no detail. Pass {_largest(target, sizes, fit)}."
        )
    side = 1 << (height - 1).bit_length()
    if height != width or side == height or _enlarged((side, side), sizes, fit) >= len(sizes) / 2:
        return ""
    return (
        f"{height}: is not a power of two. Training usually takes size={side!r} and"
        f" augment='RandomCrop({height})'."
    )


def _enlarged(target: Size, sizes: Sequence[Size], fit: str) -> int:
    """Count the images that a target enlarges."""
    boxes = (place(fit, size, target) for size in sizes)
    return sum(box.height < filled.height or box.width < filled.width for box, filled in boxes)


def _largest(target: Size, sizes: Sequence[Size], fit: str) -> str:
    """Return the largest size of the target's shape, up to it, that enlarges less than half of the images."""
    most = max if fit == "pad" else min
    scales = sorted((most(h / target[0], w / target[1]), h, w) for h, w in sizes)
    _, height, width = scales[(len(scales) - 1) // 2]
    rows = min(target[0], most(height, target[0] * width // target[1]))
    columns = min(target[1], most(width, target[1] * height // target[0]))
    rows, columns = max(1, rows), max(1, columns)
    while _enlarged((rows, columns), sizes, fit) >= len(sizes) / 2 and max(rows, columns) > 1:
        rows, columns = max(1, rows - 1), max(1, columns - 1)
    return option_text("size", rows if rows == columns else _text((rows, columns)))


def _text(size: Size) -> str:
    return f"{size[0]}x{size[1]}"


def check_bits(listing: Listing) -> Iterator[Finding]:
    """Yield a note on images whose bit depth changes."""
    spec, count = listing.spec, len(listing.examined.images)
    narrowed = [seen for seen in listing.examined.images if seen.header.narrowed]
    if spec is not None and spec.deep:
        widened = 0 if isinstance(spec.channels, int) else count - len(narrowed)
        if widened:
            yield Finding(
                f"{widened:,} of {count:,} images examined have 8 bits a channel; their values times 257"
                " are stored, so that white stays white."
            )
    elif narrowed:
        largest = max((seen.largest for seen in narrowed if seen.largest is not None), default=None)
        shown = "" if largest is None else f", so the largest value seen, {largest:,}, becomes {largest >> 8}"
        yield Finding(
            f"{len(narrowed):,} of {count:,} images examined have more than 8 bits a channel; only the "
            f"high byte is stored{shown}. To store all bits, pass dtype='uint16'."
        )


def check_profiles(listing: Listing) -> Iterator[Finding]:
    """Yield a note on images with another color profile than sRGB, if profiles are ignored."""
    spec = listing.spec
    if spec is None or spec.icc != "ignore" or isinstance(spec.channels, int):
        return
    others = [seen for seen in listing.examined.images if not is_srgb(seen.header.profile)]
    if others:
        first = others[0]
        how = "Convert them to sRGB first" if spec.deep else "Pass icc='srgb' to convert them"
        yield Finding(
            f"{len(others):,} of {len(listing.examined.images):,} images examined have another color profile "
            f"than sRGB, such as {shorten(first.key)} ({shorten(describe(first.header.profile))}); it is "
            f"ignored, so their colors differ from those of sRGB images. {how}."
        )


def check_pages(listing: Listing) -> Iterator[Finding]:
    """Yield a note on files of several pages or frames, of which the first is packed."""
    read, _, several = listing.examined
    if several:
        yield Finding(
            f"{len(several):,} of {read:,} images examined have several pages or frames, such"
            f" as {examples(several)}; only the first of each is packed. To pack the"
            " others, save them as files of their own."
        )
