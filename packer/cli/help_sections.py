"""The help of packer convert in sections, the most used options first, or about a word: --help WORD."""

from __future__ import annotations

from typing import NamedTuple

import click
from click.formatting import HelpFormatter

from packer.errors import UsageError


class Section(NamedTuple):
    """Options that belong together.

    options: their names without dashes. example: a command line. words: others that lead here.
    """

    title: str
    options: str
    example: str
    words: str = ""

    def about(self, stem: str) -> bool:
        """Return True if a word begins the title's or other words of the section."""
        return stem in f"{self.title} {self.words}".lower()


MOST_USED = "size labels label split pair store like missing dry-run overwrite on-error workers"
SECTIONS = (
    Section(
        "Size and pixels",
        "size fit channels icc dtype max-pixels",
        "packer convert photos/ train.h5 --size 224 --fit pad",
    ),
    Section(
        "Labels and classes",
        "labels label label-file-column label-as label-separator classes unlabeled like",
        "packer convert photos/ train.h5 --labels labels.csv --label breed",
        "csv targets multi-label names",
    ),
    Section(
        "Masks, boxes and points",
        "pair mask-values soft boxes boxes-format boxes-unit boxes-frame keypoints flip-pairs unlisted",
        "packer convert images/ train.h5 --pair mask=masks/ --store jpeg",
        "segmentation detection yolo coco voc bboxes",
    ),
    Section(
        "Splits and order",
        "split split-column group-column shuffle seed",
        "packer convert scans/ scans.h5 --labels scans.csv --split train=0.8,val=0.2 --group-column patient",
        "folds k-folds validation test",
    ),
    Section(
        "Clips, videos and series: rows in order",
        "sequence order-column",
        "packer convert clips/ clips.h5 --sequence",
        "frames mp4 episodes windows",
    ),
    Section(
        "Storage: smaller on disk, several files",
        "store quality compress format shard-rows shard-size",
        "packer convert images/ train --store jpeg --quality 90 --shard-size 2GB",
        "jpegs",
    ),
    Section(
        "Tables: columns and features",
        "features drop keep type missing indicators one-hot max-categories standardize log1p",
        "packer convert flights.csv flights.h5 --label arr_delay --missing median --on-error skip",
    ),
    Section(
        "CSV: how the file is written",
        "header delimiter decimal thousands na keep-spaces quote escape comment skip-rows encoding",
        "packer convert prices.csv prices.h5 --label price --delimiter ';' --decimal ,",
    ),
    Section("Arrays: .npy, .npz, HDF5", "rename", "packer convert own.h5 train.h5 --rename frames=image"),
    Section(
        "Running: resume, errors, many machines",
        "dry-run overwrite on-error resume workers only-shards engine address json quiet help",
        "packer convert images/ train --shard-size 2GB --only-shards 3/16",
        "slurm clusters",
    ),
)


class SectionedCommand(click.Command):
    """A command whose help lists its options by SECTIONS; `--help WORD` shows the options about a word."""

    def get_help_option(self, ctx: click.Context) -> click.Option:
        """Return --help, with an optional word."""
        return click.Option(
            ["-h", "--help"],
            metavar="[WORD]",
            is_flag=False,
            flag_value="",
            expose_value=False,
            is_eager=True,
            help="Show this message; with a word such as masks, boxes, tables or disk, the options about it.",
            callback=self._show_help,
        )

    def format_options(self, ctx: click.Context, formatter: HelpFormatter) -> None:
        """Write the most used options, then the others of each section."""
        records = self._records(ctx)
        with formatter.section("Most used"):
            formatter.write_dl([records[name] for name in MOST_USED.split()])
        for section in SECTIONS:
            others = [records[name] for name in section.options.split() if name not in MOST_USED.split()]
            _write(formatter, section, others)

    def _show_help(self, ctx: click.Context, option: click.Parameter, word: str | None) -> None:
        """Print the help and exit, if --help was given."""
        if word is None or ctx.resilient_parsing:
            return
        text = self._about(ctx, word) if word else ctx.get_help()
        click.echo(text, color=ctx.color)
        ctx.exit()

    def _about(self, ctx: click.Context, word: str) -> str:
        """Return the help of the sections with this word in their title, else of the options that have it."""
        records, formatter, stem = self._records(ctx), ctx.make_formatter(), _stem(word)
        titled = any(section.about(stem) for section in SECTIONS)
        for section in SECTIONS:
            listed = [records[name] for name in section.options.split()]
            if titled:
                listed = listed if section.about(stem) else []
            else:
                listed = [one for one in listed if stem in " ".join(one).lower()]
            if listed:
                _write(formatter, section, listed)
        if not (text := formatter.getvalue().strip()):
            titles = "; ".join(section.title for section in SECTIONS)
            raise UsageError(f"--help {word}: no option is about it. The sections are: {titles}.")
        return text

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the command line; an unknown option that is a word of a section leads to its help."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            word = error.option_name.lstrip("-")
            if any(section.about(_stem(word)) for section in SECTIONS):
                found = f"{error.option_name}: there is no such option. See packer convert --help {word}."
                raise UsageError(found) from None
            raise

    def _records(self, ctx: click.Context) -> dict[str, tuple[str, str]]:
        """Return the help record of each option by its long name."""
        options = {max(one.opts, key=len).lstrip("-"): one for one in self.get_params(ctx)}
        return {name: record for name, one in options.items() if (record := one.get_help_record(ctx))}


def _stem(word: str) -> str:
    return word.lower().removesuffix("s")


def _write(formatter: HelpFormatter, section: Section, records: list[tuple[str, str]]) -> None:
    with formatter.section(section.title):
        formatter.write_dl(records)
        formatter.write(f"\n{'':{formatter.current_indent}}{section.example}\n")
