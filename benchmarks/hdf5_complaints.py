"""Is HDF5 slow for training? Three public complaints, rebuilt with generated data, and packer.

    pip install pylance lmdb torchvision datasets
    python benchmarks/hdf5_complaints.py windows --work bench/          galilai-group/stable-worldmodel#214
    python benchmarks/hdf5_complaints.py tiny-images --work bench/      Lumi-supercomputer/LUMI-AI-Guide#101
    python benchmarks/hdf5_complaints.py tensors --work bench/          huggingface/datasets#7753

h5py is used as in the complaint, its replacement as recommended there, packer as in its documentation. Each
lane runs in a separate process. First a complete epoch is compared with the data, row by row. Where a lane
has a choice of worker processes, the fastest count is kept. Then epochs of equal length are measured round by
round, each from iter() on, in memory; the consumer only takes the batches.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

from complaints import serving, tensors, tiny_images, windows
from lanes.origin import origin

COMPLAINTS = {
    "windows": windows.COMPLAINT,
    "tiny-images": tiny_images.COMPLAINT,
    "tensors": tensors.COMPLAINT,
}


def table(found: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a Markdown table, a line a lane."""
    lines = ["| | samples/s | spread | CPU ms a sample | workers | MB |", "|---|---|---|---|---|---|"]
    for name, lane in found.items():
        rates = [run["samples"] / run["seconds"] for run in lane["runs"]]
        cells = [
            name,
            f"{median(rates):,.0f}",
            f"{min(rates):,.0f} to {max(rates):,.0f}",
            f"{median(run['cpu'] / run['samples'] for run in lane['runs']) * 1e3:.2f}",
            str(lane["workers"]),
            f"{lane['bytes'] / 1e6:,.0f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def measure(name: str, work: Path, options: argparse.Namespace) -> tuple[dict[str, Any], dict[str, str]]:
    """Write the stores; start, check and measure the lanes. Returns results, and why lanes are missing."""
    complaint = COMPLAINTS[name]
    complaint.write(work, options.rows or complaint.rows)
    found: dict[str, Any] = {}
    without: dict[str, str] = {}
    running: dict[str, serving.Running] = {}
    with ExitStack() as stack:
        for lane, about in complaint.lanes.items():
            if missing := [module for module in about.needs if find_spec(module) is None]:
                without[lane] = f"not installed: {', '.join(missing)}"
                continue
            running[lane], compared = serving.opened(name, complaint, lane, work, stack)
            found[lane] = {
                "workers": running[lane].workers,
                "compared": compared,
                "bytes": serving.size_of(work / about.store),
            }
            print(f"{lane}: {compared} samples compared", file=sys.stderr)
        for lane, runs in serving.rounds(
            running, options.rounds, options.samples or complaint.samples
        ).items():
            found[lane]["runs"] = runs
    return found, without


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print. Returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("complaint", choices=COMPLAINTS)
    parser.add_argument("--work", required=True, metavar="DIR", help="folder of the generated data")
    parser.add_argument("--rows", type=int, help="rows of the generated data; default: as in the docstrings")
    parser.add_argument("--samples", type=int, help="samples of a measured epoch")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", metavar="FILE", help="also write all measurements to this file")
    options = parser.parse_args(argv)
    complaint = COMPLAINTS[options.complaint]
    work = Path(options.work, f"{options.complaint}-{options.rows or complaint.rows}").resolve()
    work.mkdir(parents=True, exist_ok=True)
    try:
        found, without = measure(options.complaint, work, options)
    except serving.LaneError as error:
        parser.error(str(error))
    conditions = origin(complaint.packages) | {
        "rounds": options.rounds,
        "rows": options.rows or complaint.rows,
    }
    print(", ".join(f"{name} {value}" for name, value in conditions.items()))
    print(f"{complaint.about}\n\n{table(found)}\n")
    print(*(f"{lane}: {why}" for lane, why in without.items()), sep="\n")
    if options.json:
        record = {"conditions": conditions, "about": complaint.about, "without": without, "lanes": found}
        Path(options.json).write_text(json.dumps(record, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
