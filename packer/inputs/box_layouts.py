"""Datasets of boxes in a folder, recognised by their contents: COCO, YOLO or Pascal VOC."""

from __future__ import annotations

from packer.errors import UsageError
from packer.inputs.coco_annotations import FORM as COCO_FORM
from packer.inputs.coco_annotations import find_coco
from packer.inputs.label_files import BoxLayout, ListedFolder, stem_of
from packer.inputs.label_options import ALL
from packer.inputs.opened_source import SourceOptions
from packer.inputs.surroundings import folders_above
from packer.inputs.voc_annotations import find_voc
from packer.inputs.yolo_dataset import ENDINGS, YoloDataset
from packer.inputs.yolo_labels import find_yolo
from packer.sentence import Option, Sentence


def find_boxes(
    folder: ListedFolder, options: SourceOptions, described: YoloDataset | None = None
) -> BoxLayout | None:
    """Return the dataset of boxes that a folder holds, or None.

    described: the YOLO dataset in the folder, if that is what is read.
    Raises: UsageError if the folder holds annotations of two forms, SourceError for wrong ones.
    """
    findings = options.findings
    if described is not None:
        return find_yolo(folder, options.listed, findings, described)
    if (layout := _find(folder, options)) is not None:
        return layout
    unread: list[Sentence] = []
    for place in folders_above(folder):
        if (layout := _find(place, options)) is not None:
            findings.notes.append(
                Sentence(
                    f"The annotations of {folder.name} lie beside it, in {place.name}: {layout.example}. To "
                    f"leave them out, pass {Option('Labels.unlabeled', ALL)}."
                )
            )
            return layout
        unread += _note_on_unread(place)
    findings.notes += unread[:1]
    return None


def _find(place: ListedFolder, options: SourceOptions) -> BoxLayout | None:
    """Return the dataset of boxes that a folder itself holds, or None. Raises: UsageError, SourceError."""
    forms = (
        find_coco(place, options.boxes),
        find_yolo(place, options.listed, options.findings),
        find_voc(place, options.boxes, options.findings),
    )
    found = [layout for layout in forms if layout is not None]
    if len(found) > 1:
        one, other = found[:2]
        yaml = next((way.example for way in found if way.example.endswith(ENDINGS)), "")
        raise UsageError(
            f"{place.name}: holds {one.form} ({one.example}) and {other.form} ({other.example}); one of them "
            f"is read. Move the other ones away{f', or pass {place.name}/{yaml}' if yaml else ''}, or pass "
            f"{Option('Labels.unlabeled', ALL)} for none."
        )
    layout = found[0] if found else None
    chosen = options.boxes.boxes_format
    if layout is not None and chosen is not None and layout.form != COCO_FORM:
        raise UsageError(
            f"{Option('Labels.boxes_format', chosen)}: applies to a CSV and to COCO annotations, but "
            f"{place.name} holds "
            f"{layout.form}. Leave it out."
        )
    return layout


def _note_on_unread(place: ListedFolder) -> list[Sentence]:
    """Return a note on files in a folder above that have the names of the images; [] if there are none."""
    stems = {stem_of(key) for key in place.keys}
    beside = [path for path in place.others if "/" in path and stem_of(path) in stems]
    if not beside:
        return []
    shown = " and ".join(beside[:2])
    said = f"{place.name}: files such as {shown} have the names of the images, and are not read"
    how = f"write these into a CSV or COCO's JSON, and pass {Option('labels', 'FILE')}"
    return [Sentence(f"{said}. If they hold labels, {how}.")]
