"""The headers of several packs as one, their rows one after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import fsum, sqrt

from packer.format.header import Extent, Header


def joined(
    headers: Sequence[Header], files: Sequence[str], skipped: Sequence[Mapping[str, str]] = ()
) -> Header:
    """One header for shards with equal fields and classes.

    files: their names, to which extents become relative; skipped: inputs that none of the shards lists.
    """
    extents: dict[str, list[Extent]] = {name: [] for name in headers[0].columns}
    splits: dict[str, list[tuple[int, int]]] = {}
    first = 0
    for header, file in zip(headers, files, strict=True):
        for name, own in header.extents.items():
            extents[name] += (replace(e, file=f"{file}/{e.file}" if e.file else file) for e in own)
        for name, spans in header.splits.items():
            for start, stop in spans:
                before = splits.setdefault(name, [])
                if start == stop:
                    continue
                if before and before[-1][1] == first + start:
                    before[-1] = before[-1][0], first + stop
                else:
                    before.append((first + start, first + stop))
        first += header.rows
    return replace(
        headers[0],
        rows=first,
        extents={name: tuple(es) for name, es in extents.items()},
        splits={name: tuple(spans) for name, spans in splits.items()},
        statistics=_statistics(headers),
        skipped=tuple(s for header in headers for s in header.skipped) + tuple(skipped),
        table=headers[0].table if all(h.table == headers[0].table for h in headers) else None,
    )


def _statistics(headers: Sequence[Header]) -> dict[str, dict[str, list[float]]]:
    """Means and deviations over all rows, of the fields for which every header has them."""
    rows = sum(h.rows for h in headers)
    found: dict[str, dict[str, list[float]]] = {}
    for name in headers[0].statistics:
        own = [(h.rows, h.statistics.get(name, {})) for h in headers]
        lengths = {len(s.get(key, ())) for _, s in own for key in ("mean", "std")}
        if len(lengths) > 1 or 0 in lengths:
            continue
        channels = range(lengths.pop())
        mean = [fsum(n * s["mean"][c] for n, s in own) / rows for c in channels]
        square = [fsum(n * (s["std"][c] ** 2 + s["mean"][c] ** 2) for n, s in own) / rows for c in channels]
        found[name] = {
            "mean": mean,
            "std": [sqrt(max(0.0, q - m * m)) for q, m in zip(square, mean, strict=True)],
        }
    return found
