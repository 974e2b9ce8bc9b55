"""Images that are only names, for tests of label files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from packer.errors import ImageError
from packer.inputs import table_targets
from packer.inputs.findings import Findings
from packer.inputs.image_targets import ImageTargets
from packer.inputs.label_csv import LabelTable
from packer.inputs.label_options import Labels
from packer.inputs.opened_source import ImageSource


class NamedImages(ImageSource):
    """Images without bytes."""

    def __init__(self, keys: Sequence[str], findings: Findings | None = None, name: str = "") -> None:
        super().__init__(list(keys), np.zeros(len(keys), np.int64), np.zeros(max(len(keys), 1), np.int64))
        self.name, self.findings = name, findings or Findings()

    def read(self, index: int) -> bytes:
        raise ImageError("not there.")


def label_table(
    path: str,
    keys: Sequence[str],
    chosen: Sequence[str] = (),
    findings: Findings | None = None,
    *,
    file_column: str | None = None,
    folder: str = "",
    beside: Sequence[str] = (),
    content: Any = None,
    **options: Any,
) -> LabelTable:
    labels = Labels(path, column=list(chosen) or None, file_column=file_column, **options)
    return LabelTable(labels, NamedImages(keys, findings, folder), beside, content)


def read_targets(
    labels: Labels, keys: Sequence[str], findings: Findings, beside: Sequence[str] = ()
) -> ImageTargets:
    return table_targets.read_targets(labels, NamedImages(keys, findings), beside)
