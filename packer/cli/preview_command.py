"""packer preview: a contact sheet of a source before it is packed, or of a pack."""

from __future__ import annotations

from copy import copy
from functools import partial
from typing import Any

import click
from click.core import ParameterSource

from packer import units
from packer.cli.console import SKIPPED, Output, announce_arrays, announce_plan, cli, tell_skipped
from packer.cli.convert_command import array_keywords, convert, image_keywords, kind_of, take_options
from packer.cli.options import ARRAYS, IMAGES, OUTPUT, PATH, InputOption, option, options, splits_of
from packer.errors import UsageError


@cli.command()
@click.argument("sources", metavar="SRC...|PACK", nargs=-1, required=True, type=PATH)
@options(
    option("-o --out", "FILE", "Output image, .png or .jpg.", "preview.png"),
    option("--augment", "TEXT",
           "Transforms of packer.augment; Normalize() uses the pack's mean, std. Default: images as stored."),
    option("--rows", "N", "Most images on the sheet.", 64),
    option("--columns", "N", "Images per line of the sheet; default: a roughly square sheet."),
    option("--repeat", "K", "Show each image as K epochs augment it.", 1),
    option("--seed", "N", "Seed of the augmentation and of the order; of SRC, as for convert.", 0),
    option("--epoch", "N", "Epoch of the augmentation; the first one with --repeat.", 0),
    option("--order", "NAME", "PACK: loader order; the sheet shows its first rows.", "sequential"),
    option("--split", "NAME,...",
           "Only the rows of this split, or of these; or of SRC, new splits, as for convert."),
    option("--overwrite", None, "Replace FILE even if it is not an earlier sheet."),
    OUTPUT,
)  # fmt: skip
@click.pass_context
def preview(
    context: click.Context, /, sources: tuple[str, ...], out: str, *, output: Output, **given: Any
) -> None:
    """Draw a contact sheet of images before they are packed, or of a pack as the network receives it.

    Labels are printed under the images; masks, boxes and keypoints are drawn over them.

    SRC is images, or arrays of them, as for packer convert, whose options can all be given too. The sheet
    shows some images of each split and class as they would be packed. Nothing is written but FILE.

    \b
    packer preview photos/ -o sheet.png --size 128
    packer preview photos/ --split train=0.75,val=0.25 --rows 12
    packer preview train.h5 -o sheet.png
    packer preview train.h5 --augment "RandomResizedCrop(224), RandomHorizontalFlip(), Normalize()"
    packer preview train.h5 --augment "RandomCrop(224), ColorJitter(0.4, 0.4, 0.4)" --rows 8 --repeat 6
    """
    from packer.packs.pack_opening import is_pack
    from packer.previews.contact_sheet import preview as run

    own = {name: given.pop(name) for name in _OWN & given.keys()}
    pack = next(filter(is_pack, sources), None)
    if pack is None:
        named = own["split"] is not None and "=" not in own["split"]
        if not named or given["split_column"] or given["group_column"]:
            given["split"] = own.pop("split")
        keywords = _keywords(context, sources, output, given) | own
        sheet = run(sources if len(sources) > 1 else sources[0], out, **keywords)
    else:
        if len(sources) > 1:
            raise UsageError(f"{pack}: is a pack; a sheet shows one pack, or one source. Pass it alone.")
        typed = {
            name: value
            for name, value in given.items()
            if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
        }
        sheet = run(pack, out, **own | typed | {"split": splits_of(pack, own["split"])})
    output.note(sheet.notes)
    times = f" as {sheet.repeat} epochs draw them" if sheet.repeat > 1 else ""
    over = f" with {', '.join(sheet.overlaid)}" if sheet.overlaid else ""
    width, height = sheet.size
    output.tell(
        sheet._asdict(),
        f"{sheet.path}: {units.count(sheet.rows, 'image')}{over}{times}, {width:,}x{height:,} pixels,"
        f" {units.size(sheet.nbytes)}; {', '.join((*sheet.transforms, sheet.text))}",
    )
    if sheet.skipped:
        count = len(sheet.skipped)
        tell_skipped(
            output, f"skipped {units.count(count, 'input')} among those chosen", sheet.skipped, count
        )
        raise click.exceptions.Exit(SKIPPED)


def _keywords(
    context: click.Context, sources: tuple[str, ...], output: Output, given: dict[str, Any]
) -> dict[str, Any]:
    """Return the options of convert as keywords of the conversion; {} for a table, which is refused."""
    kind = kind_of(sources[0])
    if kind not in (IMAGES, ARRAYS):
        return {}
    taken = take_options(context, kind, sources[0], "OUT", given)
    if kind == ARRAYS:
        return array_keywords(**taken) | {"on_plan": partial(announce_arrays, output)}
    return image_keywords(**taken) | {"on_plan": partial(announce_plan, output, sources, "")}


_OWN = {str(parameter.name) for parameter in preview.params}
for _parameter in convert.params:
    if isinstance(_parameter, InputOption) and _parameter.name not in _OWN:
        _hidden = copy(_parameter)
        _hidden.hidden = True
        preview.params.append(_hidden)
