"""PlanContents: the images of a planned pack by split and class, for people who look before they pack."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packer.convert.sample_order import SampleOrder
from packer.format.fields import Field
from packer.inputs.file_names import UNLABELED
from packer.inputs.listing import Finding, Listing
from packer.packs.description import describe_field

_EXAMPLES = 3
_PAIRS = 2
NO_CLASS = "(no class)"
"""Name of the images without a class."""


@dataclass(frozen=True)
class Group:
    """Images of one class in one split. rows: their number; examples: the keys of the first three."""

    rows: int
    examples: tuple[str, ...]


@dataclass(frozen=True)
class PlanContents:
    """Contents of a planned pack of images.

    groups: split -> class -> images; split "" without splits, class "(no class)" without classes; images of
    several classes count in each. fields: field -> dtype, shape and meaning, in words. pairs: field -> keys
    of two images, each with that of its partner. left_out: suffix -> files that are not images. skipped:
    inputs that are left out, as in Header.
    """

    groups: Mapping[str, Mapping[str, Group]] = field(default_factory=dict)
    fields: Mapping[str, str] = field(default_factory=dict)
    pairs: Mapping[str, Sequence[tuple[str, str]]] = field(default_factory=dict)
    left_out: Mapping[str, int] = field(default_factory=dict)
    skipped: Sequence[Mapping[str, str]] = ()
    findings: Sequence[Finding] = ()

    @classmethod
    def from_listing(
        cls, listing: Listing, order: SampleOrder, fields: Sequence[Field], findings: Sequence[Finding]
    ) -> PlanContents:
        """Return the contents of a pack of these images, in that order."""
        refused, keys = listing.source.findings.refused, listing.keys
        spans = order.splits or {"": (0, len(order.samples))}
        there = np.ones(len(keys), np.bool_)
        there[list(refused)] = False
        groups = {
            split: _groups(listing, samples[there[samples]])
            for split, (start, stop) in spans.items()
            for samples in [np.sort(order.samples[start:stop])]
        }
        shown = [k for k in range(len(keys)) if k not in refused][:_PAIRS] if listing.pairs else []
        return cls(
            groups,
            {one.name: describe_field(one) for one in fields},
            {pair.field.name: [(keys[k], pair.keys[k]) for k in shown] for pair in listing.pairs},
            dict(listing.source.left_out),
            [
                *listing.source.findings.skipped,
                *({"key": keys[k], "reason": reason} for k, reason in sorted(refused.items())),
            ],
            findings,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the contents as plain JSON values."""
        groups = {split: {name: vars(one) for name, one in of.items()} for split, of in self.groups.items()}
        findings = [
            {"severity": "error" if one.error else "note", "sentence": one.sentence} for one in self.findings
        ]
        return {**vars(self), "groups": groups, "findings": findings}


def _groups(listing: Listing, samples: NDArray[np.int64]) -> dict[str, Group]:
    """Return class -> images, for some of the images."""
    classes, label = listing.classes or (), listing.targets.fixed.get("label")
    if label is None or not classes:
        return {NO_CLASS: _group(listing, samples)}
    values = label[samples]
    if values.ndim == 1:
        order = np.argsort(values, kind="stable")
        numbers, starts = np.unique(values[order], return_index=True)
        members = {
            NO_CLASS if number == UNLABELED else classes[number]: samples[of]
            for number, of in zip(numbers.tolist(), np.split(order, starts[1:]), strict=True)
        }
    else:
        members = {name: samples[values[:, number] > 0] for number, name in enumerate(classes)}
        members[NO_CLASS] = samples[~values.any(axis=1)]
    return {name: _group(listing, of) for name, of in members.items() if len(of)}


def _group(listing: Listing, samples: NDArray[np.int64]) -> Group:
    return Group(len(samples), tuple(listing.keys[k] for k in samples[:_EXAMPLES].tolist()))
