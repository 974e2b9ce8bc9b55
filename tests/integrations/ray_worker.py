"""What Ray Train's workers run in test_ray.py; a module of its own, so that they can import it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.integrations.rows import dataset_of, rows_of


def run(config: dict[str, Any]) -> None:
    """Write down the ranks found and the rows of two epochs."""
    dataset = dataset_of(config["pack"], ends="drop")
    given = [[rows_of(batch) for batch in dataset] for _ in range(2)]
    found = {"world": dataset.world_size, "given": given}
    (Path(config["out"]) / f"{dataset.rank}.json").write_text(json.dumps(found))
