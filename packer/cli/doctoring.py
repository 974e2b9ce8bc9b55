"""packer doctor: what this machine offers, and what is in the way."""

from __future__ import annotations

import click

from packer.cli.console import json_text, say_lines
from packer.cli.options import JSON, PATH
from packer.progress import Status


@click.command()
@click.argument("folder", metavar="[FOLDER]", type=PATH, default=".")
@JSON
def doctor(folder: str, *, as_json: bool) -> None:
    """Look at this machine: versions, cores, memory, disk, GPU, and what is in the way of loading, with its remedy.

    FOLDER is where your data lie, by default the current one.

    \b
    packer doctor /data
    packer doctor --json | jq .traps
    """
    from packer.doctor.examination import examine

    with Status(not as_json) as status:
        found = examine(folder, progress=status.say)
    say_lines(json_text("doctor", found.to_dict()) if as_json else str(found))
