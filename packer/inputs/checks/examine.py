"""Runs every check on a listing. A new check is a function of a Listing that yields Findings, in CHECKS."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from packer.inputs.checks import (
    class_checks,
    coordinate_checks,
    folder_checks,
    label_checks,
    mask_checks,
    mask_value_checks,
    picture_checks,
    sidecar_checks,
)
from packer.inputs.listing import Finding, Listing

Check = Callable[[Listing], Iterator[Finding]]

CHECKS: tuple[Check, ...] = (
    sidecar_checks.check_sidecars,
    mask_checks.check_masks_among_images,
    folder_checks.check_class_folders,
    class_checks.check_classes_of_splits,
    class_checks.check_empty_classes,
    folder_checks.check_single_class,
    folder_checks.check_levels,
    folder_checks.check_classes_of_one,
    folder_checks.check_continued_numbers,
    mask_checks.check_labels_in_names,
    class_checks.check_class_names,
    sidecar_checks.check_unread_tables,
    label_checks.check_label_texts,
    label_checks.check_labels_of_folders,
    label_checks.check_numbers,
    mask_value_checks.check_mask_values,
    folder_checks.check_files_left_out,
    picture_checks.check_size,
    picture_checks.check_bits,
    picture_checks.check_profiles,
    picture_checks.check_pages,
    coordinate_checks.check_images_without_boxes,
    coordinate_checks.check_turned_images,
    coordinate_checks.check_outside_points,
    coordinate_checks.check_extent,
    coordinate_checks.check_sides,
)
"""All checks; errors of earlier ones are shown first."""


def examine(listing: Listing) -> list[Finding]:
    """Return the findings of all checks, errors first.

    Findings about a folder that can be left out are recorded in the source's Findings if inputs are skipped.
    """
    found = [finding for check in CHECKS for finding in check(listing)]
    findings = listing.source.findings
    if findings.skip:
        findings.skipped += [{"key": one.key, "reason": one.reason} for one in found if one.key]
        found = [one for one in found if not one.key]
    return sorted(found, key=lambda one: not one.error)
