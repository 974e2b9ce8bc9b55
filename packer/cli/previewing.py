"""packer preview: a contact sheet of one batch."""

from __future__ import annotations

from typing import Any

import click

from packer import units
from packer.cli.console import Output
from packer.cli.options import OUTPUT, PATH, SPLIT, option, options


@click.command()
@click.argument("pack", metavar="PACK", type=PATH)
@options(
    option("-o --out", "FILE", "The sheet, .png or .jpg.", "preview.png"),
    option("--augment", "TEXT",
           "Transforms of packer.augment; Normalize() means the pack's mean and std. Default: images as stored."),
    option("--rows", "N", "Images on the sheet, at most.", 64),
    option("--columns", "N", "Images side by side; default: so that it is about square."),
    option("--repeat", "K", "Show each image as K epochs draw it.", 1),
    option("--seed", "N", "Of the draws, and of the order.", 0),
    option("--epoch", "N", "Whose draws, the first of --repeat.", 0),
    option("--order", "NAME", "Which rows: the first that this order of the loader gives.", "sequential"),
    SPLIT,
    OUTPUT,
)  # fmt: skip
def preview(pack: str, out: str, *, output: Output, **given: Any) -> None:
    """Draw a contact sheet of one batch, as the network will see it.

    Labels stand under the images; masks, boxes and keypoints are drawn over them.

    \b
    packer preview train.h5 -o sheet.png
    packer preview train.h5 --augment "RandomResizedCrop(224), RandomHorizontalFlip(), Normalize()"
    packer preview train.h5 --augment "RandomCrop(224), ColorJitter(0.4, 0.4, 0.4)" --rows 8 --repeat 6
    """
    from packer.previews.contact_sheet import preview as run

    made = run(pack, out, **given)
    times = f" as {made.repeat} epochs draw them" if made.repeat > 1 else ""
    over = f" with {', '.join(made.overlaid)}" if made.overlaid else ""
    width, height = made.size
    output.tell(
        made._asdict(),
        f"{made.path}: {units.count(made.rows, 'image')}{over}{times}, {width:,}x{height:,} pixels,"
        f" {units.size(made.nbytes)}; {', '.join((*made.transforms, made.text))}",
    )
