"""The command line: a thin skin over convert_images, open_pack and bench. Only this file knows click and progress bars.

Exit codes: 0 done; 1 the work failed; 2 wrong usage; 3 finished, with inputs skipped; 130 interrupted.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import TYPE_CHECKING, Any, NoReturn

import click
from tqdm import tqdm

from packer import __version__, units
from packer.errors import MissingDependencyError, PackerError, UsageError

if TYPE_CHECKING:
    from packer.convert.images import Plan
    from packer.format.pack import Pack

SKIPPED = 3
INTERRUPTED = 130
_AGAIN_SECONDS = 0.02
_LISTED = 20  # skipped inputs printed; all are in the pack's header


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="packer")
def cli() -> None:
    """Turn a folder of images into one file that trains at memory speed.

    \b
    packer convert images/ train.h5 --size 256
    packer info train.h5
    packer bench images/ train.h5
    """


@cli.command()
@click.argument("source", metavar="SRC")
@click.argument("out", metavar="OUT")
@click.option(
    "--size",
    default="256",
    show_default=True,
    metavar="N|HxW",
    help="Side, or height x width, in pixels; powers of two.",
)
@click.option("--any-size", is_flag=True, help="Allow sizes that are not powers of two.")
@click.option("--fit", type=click.Choice(["crop", "pad", "stretch"]), default="crop", show_default=True,
              help="crop: shortest side to the size, centre crop; pad: fit inside, black bars; stretch: just that.")  # fmt: skip
@click.option("--channels", type=click.Choice(["rgb", "gray", "rgba"]), default="rgb", show_default=True,
              help="What a pixel holds. Alpha is composited on white for rgb and gray.")  # fmt: skip
@click.option("--format", "format_", type=click.Choice(["h5", "npy"]),
              help="One HDF5 file, or a directory of .npy files; by default OUT's ending decides (.h5, .hdf5: HDF5).")  # fmt: skip
@click.option(
    "--labels", metavar="FILE", help="CSV of file,label rows, for folders that do not say the class."
)
@click.option(
    "--shuffle/--no-shuffle", default=True, show_default=True, help="Store the rows in a random order."
)
@click.option("--seed", default=0, show_default=True, help="Of the shuffle.")
@click.option(
    "--workers",
    type=int,
    metavar="N",
    help="Parallel workers; default: the cores at hand. The result does not depend on it.",
)
@click.option("--on-error", type=click.Choice(["stop", "skip"]), default="stop", show_default=True,
              help="At an input that cannot be packed: stop, or leave it out and list it (exit code 3).")  # fmt: skip
@click.option(
    "--max-pixels", type=int, metavar="N", help="Refuse larger inputs undecoded; default: 178,956,970."
)
@click.option("--overwrite", is_flag=True, help="Replace OUT if it is a pack.")
@click.option("--quiet", is_flag=True, help="Print nothing but errors.")
def convert(
    source: str, out: str, *, format_: str | None, max_pixels: int | None, quiet: bool, **options: Any
) -> None:
    """Pack images into one file.

    SRC is a folder with one sub-folder a class, a flat folder, a text list of paths, or a .tar, .tar.gz or .zip of
    such a folder (name a folder inside it by path: photos.tar/train). OUT ends in .h5 for one HDF5 file; else it is a
    directory of .npy files.

    \b
    packer convert images/ train.h5 --size 256
    packer convert cifar.tar.gz/train train.h5 --size 32
    packer convert photos/ train.h5 --labels labels.csv --on-error skip
    """
    from packer.convert.images import convert_images
    from packer.convert.pixels import MAX_PIXELS

    bar = _Bar(quiet)

    def announce(plan: Plan) -> None:
        if not quiet:
            classes = "" if plan.classes is None else f" of {units.count(plan.classes, 'class')}"
            shape = "x".join(map(str, plan.shape))
            _say(
                f"{source}: {units.count(plan.rows, 'image')}{classes} -> {out}: {shape} each, about {units.size(plan.bytes)}"
            )
            for note in plan.notes:
                _say(f"note: {note}")
        bar.start(plan.rows)

    with bar:
        report = convert_images(
            source,
            out,
            format=format_,
            max_pixels=MAX_PIXELS if max_pixels is None else max_pixels,
            on_plan=announce,
            on_progress=bar.move,
            **options,
        )
    if not quiet:
        _say(
            f"packed {units.count(report.rows, 'image')}, {units.size(report.bytes_read)} -> {units.size(report.bytes_written)},"
            f" in {units.duration(report.seconds)} ({report.rows_per_second:,.0f} images/s, {units.count(report.workers, 'worker')})"
        )
    if report.skipped:
        _say(f"skipped {units.count(len(report.skipped), 'input')}:", err=True)
        for item in report.skipped[:_LISTED]:
            _say(f"  {item['key']}: {item['reason']}", err=True)
        if len(report.skipped) > _LISTED:
            _say(
                f"  and {len(report.skipped) - _LISTED} more; packer info {out} --json lists them all",
                err=True,
            )
        raise click.exceptions.Exit(SKIPPED)


@cli.command()
@click.argument("pack", metavar="PACK")
@click.option("--json", "as_json", is_flag=True, help="Everything the header holds, as JSON.")
def info(pack: str, as_json: bool) -> None:
    """Show what a pack holds.

    \b
    packer info train.h5
    packer info train.h5 --json | jq .statistics
    """
    from packer.format.pack import open_pack

    opened = open_pack(pack)
    if as_json:
        record = json.loads(opened.header.to_bytes()) | {
            "path": pack,
            "sealed": opened.sealed,
            "bytes": opened.nbytes,
        }
        click.echo(json.dumps(record, indent=2))
    else:
        for line in _describe(opened):
            _say(line)


@cli.command()
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
        _say(report.table())


def main() -> NoReturn:
    """Run the command line and exit; every error is a sentence on stderr."""
    for name in ("SIGTERM", "SIGHUP"):
        if hasattr(signal, name):
            number = getattr(signal, name)
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
                signal.signal(number, _interrupt)
    sys.unraisablehook = _interrupt_again
    try:
        code = cli.main(prog_name="packer", standalone_mode=False) or 0
    except click.exceptions.Exit as stop:
        code = stop.exit_code
    except click.ClickException as error:
        error.show()
        code = UsageError.exit_code
    except PackerError as error:
        _say(f"Error: {error}", err=True)
        code = error.exit_code
    except (KeyboardInterrupt, click.Abort):
        _say("Interrupted; nothing was left behind.", err=True)
        code = INTERRUPTED
    except BrokenPipeError:  # the reader of our output has gone: not an error of ours
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    sys.exit(code)


class _Bar:
    """The progress bar: images, images/s, time left; only on a terminal."""

    def __init__(self, quiet: bool) -> None:
        self._disable = True if quiet else None
        self._bar: Any = None

    def start(self, total: int) -> None:
        self._bar = tqdm(total=total, unit=" images", disable=self._disable, leave=False, dynamic_ncols=True)

    def move(self, done: int) -> None:
        self._bar.update(done - self._bar.n)

    def __enter__(self) -> _Bar:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._bar is not None:
            self._bar.close()


def _describe(pack: Pack) -> list[str]:
    """A pack in lines for people."""
    from packer.format.header import VERSION

    header = pack.header
    lines = [
        f"{pack.path}: {units.count(pack.rows, 'row')}, {units.size(pack.nbytes)}, {pack.format}, format {VERSION}"
    ]
    for f in header.fields:
        shape = "bytes of any length" if f.ragged else "x".join(map(str, f.shape or ())) or "one a row"
        about = ", ".join(f"{key} {value}" for key, value in f.about.items())
        lines.append(f"  {f.name:<8} {f.dtype.lstrip('<|'):<3} {shape}{f' ({about})' if about else ''}")
    if header.classes is not None:
        shown = ", ".join(header.classes[:12]) + (", ..." if len(header.classes) > 12 else "")
        lines.append(f"classes    {len(header.classes)}: {shown}")
    for name, values in header.statistics.items():
        lines.append(
            f"{name:<10} " + "  ".join(f"{k} {' '.join(f'{x:.4f}' for x in v)}" for k, v in values.items())
        )
    order = "of the source" if header.seed is None else f"shuffled, seed {header.seed}"
    lines.append(f"order      {order}; blocks of {units.count(header.block_rows, 'row')}")
    lines.append(
        "made by    " + ", ".join(f"{k} {v}" for k, v in header.provenance.get("versions", {}).items())
    )
    if header.skipped:
        lines.append(
            f"skipped    {units.count(len(header.skipped), 'input')}; --json lists them with their reasons"
        )
    if not pack.sealed:
        lines.append(
            "unsealed   another program has opened the file for writing since it was made: packer cannot vouch for it"
        )
    return lines


def _say(text: str, *, err: bool = False) -> None:
    """Print text in which undecodable bytes of file names may stand."""
    encoding = (sys.stderr if err else sys.stdout).encoding or "utf-8"
    click.echo(text.encode(encoding, "backslashreplace").decode(encoding), err=err)


def _interrupt(signum: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt


def _interrupt_again(dropped: sys.UnraisableHookArgs) -> None:
    """A signal that came during a destructor or a weak reference's callback is dropped there by Python: raise it once more."""
    if not isinstance(dropped.exc_value, KeyboardInterrupt):
        sys.__unraisablehook__(dropped)
    elif hasattr(signal, "setitimer"):
        signal.signal(signal.SIGALRM, _interrupt)
        signal.setitimer(signal.ITIMER_REAL, _AGAIN_SECONDS)
