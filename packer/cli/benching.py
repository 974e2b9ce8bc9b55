"""packer bench: a pack against the images it was made of."""

from __future__ import annotations

from typing import Any

import click
from tqdm import tqdm

from packer.cli.saying import say
from packer.errors import MissingDependencyError, PackerError, UsageError


@click.command()
@click.argument("images", metavar="IMAGES")
@click.argument("pack", metavar="PACK")
@click.option("--labels", metavar="FILE", help="The CSV of labels that PACK was converted with.")
@click.option("--batch-size", default=256, show_default=True, metavar="N", help="Rows a batch.")
@click.option(
    "--rounds", default=3, show_default=True, metavar="N", help="Measurements of each way; medians are shown."
)
@click.option("--seconds", default=1.0, show_default=True, metavar="S", help="Length of each measurement.")
@click.option(
    "--workers",
    "workers",
    metavar="N,N",
    help="DataLoader workers to try; default: 0, 1, 2, 4 ... the cores.",
)
@click.option(
    "--cold/--no-cold", default=True, show_default=True, help="Measure with an empty page cache too."
)
@click.option("--json", "json_file", metavar="FILE", help="Write all figures and conditions there.")
@click.option("--quiet", is_flag=True, help="Print nothing but errors.")
def bench(
    images: str, pack: str, *, workers: str | None, json_file: str | None, quiet: bool, **options: Any
) -> None:
    """Compare a pack with reading its images, and both with the machine's limit.

    IMAGES is what PACK was converted from.

    \b
    packer bench images/ train.h5
    packer bench images/ train.h5 --json bench.json
    """
    try:
        from packer.bench.raw_vs_packed import bench as run
    except ImportError:
        raise MissingDependencyError("torch", "packer bench", "torch") from None
    try:
        counts = [int(n) for n in workers.split(",")] if workers else None
    except ValueError:
        raise UsageError(
            f"--workers {workers}: is no list of whole numbers. Pass for example 0,2,4."
        ) from None
    with tqdm(bar_format="{desc}", disable=None if not quiet else True, leave=False) as line:
        report = run(
            images, pack, workers=counts, progress=lambda text: line.set_description_str(text), **options
        )
    if json_file:
        try:
            with open(json_file, "w", encoding="utf-8") as file:
                file.write(report.to_json())
        except OSError as error:
            raise PackerError(
                f"{json_file}: cannot be written ({error.strerror}). Pass another name."
            ) from error
    if not quiet:
        say(report.table())
