"""Exports to data sets of few files: WebDataset's tars, and Parquet files in Hugging Face's layout, about so many bytes each.

    000000.tar  000001.tar                  cat/1.png, cat/1.cls: the number of the class, cat/1.json: labels that are no whole number,
    classes.txt                             boxes, box labels, keypoints; cat/1.mask.png: a field of pixels; names of classes, one a line
    train-00000-of-00002.parquet            image: struct<bytes, path>, label: named by a ClassLabel, boxes, box_label, keypoints as lists

Rows keep the pack's order; of a pack with splits each file holds rows of one, and is called by it. Raw rows are PNG files, JPEG rows
the stored bytes. webdataset_tars.py and parquet_images.py read them back.
"""

from __future__ import annotations

import json
import os
import tarfile
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packer.convert.export_files import (
    ExportRows,
    check_keys,
    file_names,
    file_stems,
    hidden,
    stem_of,
)
from packer.convert.export_labels import CLASSES_FILE
from packer.errors import FormatError, MissingDependencyError
from packer.format.header import Field
from packer.inputs.file_names import SPLITS
from packer.opencv import cv2
from packer.orders.runs import consecutive, one_run
from packer.read.row_reader import decode_ragged
from packer.sentence import Option

Bytes = bytes | memoryview
_TAR_BLOCK, _TAR_RECORD = 512, 10240
_GROUP_ROWS = 100
"""Rows of a row group: what datasets writes for images, so that a reader skips to a row at little cost."""


class ExportedSample(NamedTuple):
    """A row to be written. files: of the image and of each field of pixels; targets: its other fields, arrays and numbers."""

    position: int
    files: dict[str, Bytes]
    targets: dict[str, Any]


class ExportedShards(ABC):
    """The files of an export to shards: rows encoded in parallel, written in order. `TarExport` and `ParquetExport` are such."""

    format = ""
    whole_labels_alone = False
    """True if packer convert reads whole numbers as labels without being told where they stand."""

    def __init__(self, rows: ExportRows, shard_bytes: int) -> None:
        """Raises FormatError for keys that are no plain paths."""
        self.rows, self.shard_bytes, self.header = rows, shard_bytes, rows.pack.header
        keys = [os.fsdecode(key) for key in rows.reader.read_ragged("key", consecutive(rows.rows))]
        check_keys(rows.pack.path, keys, rows.rows)
        self.keys = keys
        self.classes = None if self.header.classes is None else list(self.header.classes)
        fields = {f.name: f for f in rows.pack.fields}
        self.label = fields.get("label") if "label" in rows.targets.names else None
        self.others = [fields[name] for name in rows.targets.names if name != "label"]
        self.masks = [f for f in rows.masks if rows.ending(f) == ".png"]
        self.split_of = self._find_splits()

    @property
    def numbers_classes(self) -> bool:
        """True if each row has one whole number for a label."""
        return self.label is not None and self.label.shape == () and self.label.dtype[1] in "iu"

    @abstractmethod
    def open_shard(self, work: str, prefix: str, number: int) -> ShardFile:
        """Begin a file in a folder. prefix: the split and a dash, or ""; number: of the file of that split."""

    def finish(self, work: str, counts: Mapping[str, int]) -> tuple[int, int]:
        """Write, or rename, what is left to do when all rows are down. counts: prefix -> files. Returns: files and bytes added."""
        return 0, 0

    def write(self, work: str, workers: int, progress: Callable[[int], None]) -> tuple[int, int]:
        """Write everything into an empty folder, and return the files and bytes. Raises OSError, FormatError."""
        opened: dict[str, ShardFile] = {}
        counts: Counter[str] = Counter()
        nbytes = 0
        try:
            for done, sample in enumerate(self._samples(workers), 1):
                prefix = self.split_of[sample.position]
                shard = opened.get(prefix)
                if shard is not None and shard.nbytes >= self.shard_bytes:
                    nbytes += opened.pop(prefix).close()
                    shard = None
                if shard is None:
                    shard = opened[prefix] = self.open_shard(work, prefix, counts[prefix])
                    counts[prefix] += 1
                shard.add(sample)
                progress(done)
        finally:
            nbytes += sum(shard.close() for shard in opened.values())
        files, more = self.finish(work, counts)
        return sum(counts.values()) + files, nbytes + more

    def options(self) -> dict[str, Any]:
        """Return the options of packer convert that read labels back."""
        return {}

    def notes(self) -> Iterator[str]:
        """Yield a sentence for each thing that will not come back as it was."""
        left = [*self.rows.left, *(f.name for f in self.rows.masks if f not in self.masks)]
        if left:
            yield f"Not written: {', '.join(left)}; images, labels, boxes, keypoints and fields of 8-bit pixels are."
        kept = [f.name for f in (*self.others, *self.masks)]
        if self.label is not None and self.label.shape != ():
            kept.append("label")
        if kept:
            yield (
                f"packer convert does not read {', '.join(kept)} of {self.format} files; to bring them back export to a folder, "
                + Option("format", "folder")
                + "."
            )
        if self.numbers_classes and self.label is not None and self.label.dtype != "<i8":
            yield f"The labels ({np.dtype(self.label.dtype).name}) come back as int64."
        if self.rows.split is None and self.header.splits and not any(self.split_of):
            yield "The splits do not come back: they share rows, or leave some out, or are not called train, val or test."

    def _find_splits(self) -> list[str]:
        """Return the split of each row with a dash behind it, "" where there are none."""
        splits = self.header.splits
        if self.rows.split is not None:
            return [f"{self.rows.split}-" if self.rows.split in SPLITS else ""] * len(self.keys)
        owners = np.zeros(len(self.keys), np.int64)
        for number, spans in enumerate(splits.values(), 1):
            for start, stop in spans:
                own = slice(*np.searchsorted(self.rows.rows, (start, stop)).tolist())
                owners[own] = np.where(owners[own] == 0, number, -1)
        if not splits or (owners < 1).any() or not SPLITS.issuperset(splits):
            return [""] * len(self.keys)
        names = [f"{name}-" for name in splits]
        return [names[owner - 1] for owner in owners.tolist()]

    def _samples(self, workers: int) -> Iterator[ExportedSample]:
        """Yield all rows in order, encoded by so many threads, a few pieces ahead."""
        previous = cv2.getNumThreads()
        cv2.setNumThreads(1)  # the images are the parallel work
        pool = ThreadPoolExecutor(workers, thread_name_prefix="packer-export")
        waiting: deque[Future[list[ExportedSample]]] = deque()
        try:
            for piece in self.rows.pieces():
                waiting.append(pool.submit(self._piece, *piece))
                if len(waiting) > 2 * workers:
                    yield from waiting.popleft().result()
            while waiting:
                yield from waiting.popleft().result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
            cv2.setNumThreads(previous)

    def _piece(self, position: int, first: int, count: int) -> list[ExportedSample]:
        samples = [ExportedSample(position + i, {}, {}) for i in range(count)]
        left = {f.name for f in self.rows.masks if f not in self.masks}
        for file in self.rows.files(position, first, count):
            if file.field not in left:
                samples[file.position - position].files[file.field] = file.data
        run, reader = one_run(first, first + count), self.rows.reader
        for f in (*((self.label,) if self.label is not None else ()), *self.others):
            values: Sequence[Any] | NDArray[Any]
            if f.ragged:
                stored = reader.read_ragged(f.name, run)
                values = decode_ragged(self.rows.pack, f, stored, range(first, first + count))
            else:
                values = reader.array(f, run)
            for sample, value in zip(samples, values, strict=True):
                sample.targets[f.name] = value
        return samples


class ShardFile(ABC):
    """A file that is being written."""

    nbytes = 0
    """Written so far, about."""

    @abstractmethod
    def add(self, sample: ExportedSample) -> None:
        """Write a row. Raises OSError."""

    @abstractmethod
    def close(self) -> int:
        """Write the end, and return the bytes of the file. Raises OSError."""


# WebDataset


class TarExport(ExportedShards):
    """Tars of WebDataset."""

    format = "WebDataset"

    def __init__(self, rows: ExportRows, shard_bytes: int) -> None:
        """Give each sample a name without dots; equal ones get numbers."""
        super().__init__(rows, shard_bytes)
        self.ending = ".png" if rows.format == "png" else ".jpg"
        self.stems = _sample_names(self.keys)

    def open_shard(self, work: str, prefix: str, number: int) -> ShardFile:
        """Begin a tar."""
        return _Tar(self, os.path.join(work, f"{prefix}{number:06d}.tar"))

    def finish(self, work: str, counts: Mapping[str, int]) -> tuple[int, int]:
        """Write classes.txt."""
        if self.classes is None or not self.numbers_classes:
            return 0, 0
        path = os.path.join(work, CLASSES_FILE)
        with open(path, "x", encoding="utf-8", errors="surrogateescape") as file:
            file.writelines(f"{name}\n" for name in self.classes)
        return 1, os.path.getsize(path)

    def options(self) -> dict[str, Any]:
        """Return the label of the .json, where that is one number."""
        if self.label is None or self.numbers_classes or self.label.shape != ():
            return {}
        return {"label": "label", "label_as": "float"}

    def notes(self) -> Iterator[str]:
        """Yield a sentence for each thing that will not come back as it was."""
        yield from super().notes()
        renamed = sum(stem != stem_of(key) for stem, key in zip(self.stems, self.keys, strict=True))
        if renamed:
            yield (
                f"{renamed:,} samples have other names than their keys, as a sample's name ends at its first dot and occurs once."
            )
        if out_of_sight := hidden(self.stems):
            yield f"packer convert passes over {len(out_of_sight):,} of the samples, first {out_of_sight[0]}: it takes them for hidden."
        if (
            self.numbers_classes
            and self.classes is not None
            and any(not name or name != name.strip() or "\n" in name or "\r" in name for name in self.classes)
        ):
            yield f"Some names of classes do not fit on lines; correct {CLASSES_FILE} before it is read."

    def members(self, sample: ExportedSample) -> Iterator[tuple[str, Bytes]]:
        """Yield names and contents of a row's members."""
        stem, rest = self.stems[sample.position], dict(sample.targets)
        yield stem + self.ending, sample.files["image"]
        if self.numbers_classes:
            yield f"{stem}.cls", str(int(rest.pop("label"))).encode()
        for f in self.masks:
            yield f"{stem}.{f.name}.png", sample.files[f.name]
        if rest:
            told = {name: _plain(value) for name, value in rest.items()}
            yield f"{stem}.json", json.dumps(told, allow_nan=False).encode()


def _sample_names(keys: Sequence[str]) -> list[str]:
    """Return a name for each key: without its ending, without dots in its last part, which end the name of a sample, all different.

    >>> _sample_names(["cat/1.jpg", "cat/2.b.jpg", "dog/1.jpg", "cat/1.png"])
    ['cat/1', 'cat/2_b', 'dog/1', 'cat/1~2']
    """
    used: set[str] = set()
    numbers: Counter[str] = Counter()
    names = []
    for key in keys:
        folder, slash, last = stem_of(key).rpartition("/")
        own = name = f"{folder}{slash}{last.replace('.', '_')}"
        while name in used:
            numbers[own] += 1
            name = f"{own}~{numbers[own] + 1}"
        used.add(name)
        names.append(name)
    return names


def _plain(value: Any) -> Any:
    """Return an array, or number, as JSON has it; null for what is not finite. Float32 are the shortest texts that read back."""
    array = np.asarray(value)
    if array.ndim:
        return [_plain(inner) for inner in array]
    if array.dtype.kind != "f":
        return int(array)
    return float(str(array[()])) if np.isfinite(array) else None


class _Tar(ShardFile):
    def __init__(self, export: TarExport, path: str) -> None:
        self._export, self._path = export, path
        self._file: IO[bytes] = open(path, "xb")  # noqa: SIM115

    def add(self, sample: ExportedSample) -> None:
        for name, data in self._export.members(sample):
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(data), 0o644
            head = info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
            self._file.write(head)
            self._file.write(data)
            self._file.write(bytes(-len(data) % _TAR_BLOCK))
            self.nbytes += len(head) + len(data) + -len(data) % _TAR_BLOCK

    def close(self) -> int:
        if not self._file.closed:
            end = 2 * _TAR_BLOCK
            self._file.write(bytes(end + -(self.nbytes + end) % _TAR_RECORD))
            self._file.close()
        return os.path.getsize(self._path)


# Parquet


class ParquetExport(ExportedShards):
    """Parquet files in the layout of Hugging Face's datasets."""

    format = "Parquet"

    def __init__(self, rows: ExportRows, shard_bytes: int) -> None:
        """Describe the columns. Raises: MissingDependencyError."""
        super().__init__(rows, shard_bytes)
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError:
            raise MissingDependencyError("pyarrow", "format parquet", "tables") from None
        endings = (".png",) if rows.format == "png" else (".jpg", ".jpeg", ".jpe")
        self.paths = file_names(self.keys, file_stems(self.keys, endings[0]), endings)
        picture = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])
        columns: list[tuple[str, Any]] = [("image", picture)]
        features: dict[str, Any] = {"image": {"_type": "Image"}}
        if self.label is not None:
            columns.append(("label", _arrow_type(pyarrow, self.label)))
            if self.numbers_classes and self.classes is not None:
                columns[-1] = ("label", pyarrow.int64())
                features["label"] = {"names": self.classes, "_type": "ClassLabel"}
        for f in self.others:
            columns.append((f.name, _arrow_type(pyarrow, f)))
            if f.name == "box_label" and self.classes is not None:
                named = {"names": self.classes, "_type": "ClassLabel"}
                features[f.name] = {"feature": named, "_type": "Sequence"}
        for f in self.masks:
            columns.append((f.name, picture))
            features[f.name] = {"_type": "Image"}
        try:
            told = json.dumps({"info": {"features": features}}).encode("utf-8")
            for path in self.paths:
                path.encode("utf-8")
        except UnicodeEncodeError as error:
            shown = error.object[error.start : error.end]
            raise FormatError(
                f"{rows.pack.path}: {shown!r} stands in a key or in the name of a class; Parquet holds UTF-8. Nothing was written."
            ) from None
        self.schema = pyarrow.schema(columns, metadata={"huggingface": told})

    def open_shard(self, work: str, prefix: str, number: int) -> ShardFile:
        """Begin a Parquet file, under a name without the number of all files, which is not known yet."""
        return _ParquetFile(self, os.path.join(work, f"{prefix or 'data-'}{number:05d}.parquet"))

    def finish(self, work: str, counts: Mapping[str, int]) -> tuple[int, int]:
        """Give the files the names that datasets gives them: train-00000-of-00002.parquet."""
        for prefix, count in counts.items():
            for number in range(count):
                stem = os.path.join(work, f"{prefix or 'data-'}{number:05d}")
                os.rename(f"{stem}.parquet", f"{stem}-of-{count:05d}.parquet")
        return 0, 0

    def columns(self, sample: ExportedSample) -> dict[str, Any]:
        """Return the cells of a row."""
        path = self.paths[sample.position]
        cells: dict[str, Any] = {"image": {"bytes": bytes(sample.files["image"]), "path": path}}
        cells |= {name: np.asarray(value).tolist() for name, value in sample.targets.items()}
        for f in self.masks:
            name = f"{os.path.splitext(path)[0]}.png"
            cells[f.name] = {"bytes": bytes(sample.files[f.name]), "path": name}
        return cells


def _arrow_type(pyarrow: Any, f: Field) -> Any:
    """Return Arrow's type for the rows of a field: a number, or lists of them."""
    kind, shape = f.dtype, tuple(f.shape or ())
    if f.ragged:
        kind, shape = f.about["dtype"], (-1, *f.about["row_shape"])
    arrow = pyarrow.from_numpy_dtype(np.dtype(kind))
    for _ in shape:
        arrow = pyarrow.list_(arrow)
    return arrow


class _ParquetFile(ShardFile):
    def __init__(self, export: ParquetExport, path: str) -> None:
        import pyarrow.parquet

        self._export, self._path = export, path
        self._writer = pyarrow.parquet.ParquetWriter(path, export.schema, write_page_checksum=True)
        self._waiting: list[dict[str, Any]] = []

    def add(self, sample: ExportedSample) -> None:
        self._waiting.append(self._export.columns(sample))
        self.nbytes += sum(map(len, sample.files.values()))
        if len(self._waiting) == _GROUP_ROWS:
            self._flush()

    def _flush(self) -> None:
        import pyarrow

        self._writer.write_table(pyarrow.Table.from_pylist(self._waiting, schema=self._export.schema))
        self._waiting.clear()

    def close(self) -> int:
        if self._waiting:
            self._flush()
        self._writer.close()
        return os.path.getsize(self._path)
