"""Datasets of boxes in a folder, recognised by their contents: COCO, YOLO or Pascal VOC."""

from __future__ import annotations

from packer.errors import UsageError
from packer.inputs.coco_annotations import FORM as COCO_FORM
from packer.inputs.coco_annotations import find_coco
from packer.inputs.file_names import examples
from packer.inputs.label_files import AS_TABLE, BoxLayout, ListedFolder, stem_of
from packer.inputs.label_options import ALL
from packer.inputs.opened_source import SourceOptions
from packer.inputs.surroundings import folders_above
from packer.inputs.voc_annotations import find_voc
from packer.inputs.yolo_dataset import ENDINGS, YoloDataset
from packer.inputs.yolo_labels import find_yolo


def find_boxes(
    folder: ListedFolder, options: SourceOptions, described: YoloDataset | None = None
) -> BoxLayout | None:
    """Return the dataset of boxes that a folder holds, or None.

    described: the YOLO dataset in the folder, if that is what is read.
    Raises: UsageError if the folder holds annotations of two forms, SourceError for wrong ones.
    """
    findings = options.findings
    if described is not None:
        return find_yolo(folder, options, described)
    if (layout := _find(folder, options)) is not None:
        return layout
    unread = ""
    for place in folders_above(folder):
        if (layout := _find(place, options)) is not None:
            findings.note(
                f"The annotations of {folder.name} lie beside it, in {place.name}: {layout.example}. To "
                f"leave them out, pass labels=Labels(unlabeled={ALL!r})."
            )
            return layout
        stems = {stem_of(key) for key in place.keys}
        beside = [path for path in place.others if "/" in path and stem_of(path) in stems]
        if beside and not unread:
            unread = (
                f"{place.name}: {examples(beside)} have the names of images, and are not read. If "
                f"they hold labels, {AS_TABLE}."
            )
    findings.note(unread)
    return None


def _find(place: ListedFolder, options: SourceOptions) -> BoxLayout | None:
    """Return the dataset of boxes that a folder itself holds, or None. Raises: UsageError, SourceError."""
    forms = [find(place, options) for find in (find_coco, find_yolo, find_voc)]
    found = [layout for layout in forms if layout is not None]
    if len(found) > 1:
        held = " and ".join(f"{one.form} ({one.example})" for one in found[:2])
        yaml = next(
            (f", or pass {place.name}/{one.example}" for one in found if one.example.endswith(ENDINGS)), ""
        )
        raise UsageError(
            f"{place.name}: holds {held}; one of them is read. Move the other ones away{yaml}, or pass "
            f"labels=Labels(unlabeled={ALL!r}) for none."
        )
    chosen = options.labels.boxes_format
    if found and chosen is not None and found[0].form != COCO_FORM:
        raise UsageError(
            f"labels=Labels(boxes_format={chosen!r}): applies to a CSV and to COCO annotations, but "
            f"{place.name} holds {found[0].form}. Leave it out."
        )
    return found[0] if found else None
