"""Datasets of boxes in a folder, recognised by their contents: COCO, YOLO or Pascal VOC."""

from __future__ import annotations

from collections.abc import Collection

from packer.errors import UsageError
from packer.inputs.coco_annotations import find_coco
from packer.inputs.findings import Findings
from packer.inputs.label_files import BoxLayout, ListedFolder
from packer.inputs.surroundings import folders_above
from packer.inputs.voc_annotations import find_voc
from packer.inputs.yolo_dataset import YoloDataset
from packer.inputs.yolo_labels import find_yolo


def find_boxes(
    folder: ListedFolder, listed: Collection[str], findings: Findings, described: YoloDataset | None = None
) -> BoxLayout | None:
    """Return the dataset of boxes that a folder holds, or None.

    listed: classes that the user lists. described: the YOLO dataset in the folder, if that is what is read.
    Raises: UsageError if the folder holds annotations of two forms, SourceError for wrong ones.
    """
    if described is not None:
        return find_yolo(folder, listed, findings, described)
    for place in (folder, *folders_above(folder)):
        forms = find_coco(place), find_yolo(place, listed, findings), find_voc(place, findings)
        found = [layout for layout in forms if layout is not None]
        if len(found) > 1:
            one, other = found[:2]
            raise UsageError(
                f"{place.name}: holds {one.form} ({one.example}) and {other.form} ({other.example}); one of them is "
                "read. Move the other ones away."
            )
        if found:
            if place is not folder:
                findings.notes.append(
                    f"The annotations of {folder.name} lie beside it, in {place.name}: {found[0].example}."
                )
            return found[0]
    return None
