"""Runs every check on a listing. A new check is a function of a Listing that yields Findings, in CHECKS."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from packer.inputs.checks.class_checks import check_class_names, check_classes_of_splits, check_empty_classes
from packer.inputs.checks.coordinate_checks import (
    check_extent,
    check_images_without_boxes,
    check_outside_points,
    check_sides,
    check_turned_images,
)
from packer.inputs.checks.folder_checks import (
    check_class_folders,
    check_classes_of_one,
    check_continued_numbers,
    check_files_left_out,
    check_levels,
    check_single_class,
)
from packer.inputs.checks.label_checks import check_label_texts, check_labels_of_folders, check_numbers
from packer.inputs.checks.mask_checks import check_labels_in_names, check_masks_among_images
from packer.inputs.checks.mask_value_checks import check_mask_values
from packer.inputs.checks.picture_checks import check_bits, check_pages, check_profiles, check_size
from packer.inputs.checks.sidecar_checks import check_sidecars, check_unread_tables
from packer.inputs.listing import Finding, Listing

Check = Callable[[Listing], Iterator[Finding]]

CHECKS: tuple[Check, ...] = (
    check_sidecars,
    check_masks_among_images,
    check_class_folders,
    check_classes_of_splits,
    check_empty_classes,
    check_single_class,
    check_levels,
    check_classes_of_one,
    check_continued_numbers,
    check_labels_in_names,
    check_class_names,
    check_unread_tables,
    check_label_texts,
    check_labels_of_folders,
    check_numbers,
    check_mask_values,
    check_files_left_out,
    check_size,
    check_bits,
    check_profiles,
    check_pages,
    check_images_without_boxes,
    check_turned_images,
    check_outside_points,
    check_extent,
    check_sides,
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
