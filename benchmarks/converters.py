"""Converting a folder of photos: packer beside other converters, and all of them beside the bare decoder.

    python benchmarks/converters.py photos/                 one folder a class, JPEGs
    python benchmarks/converters.py clothing.tar/train      an archive, unpacked first
    PACKER_DATA=data python benchmarks/converters.py        data/clothing.tar/train

Peers are no dependencies of packer; those that are not installed are named with the line that brings them.
ffcv also needs pkg-config, libturbojpeg0-dev and libopencv-dev.

Every run is a fresh process that has imported what it needs before the clock starts, and goes from the folder
to closed files: `--workers` threads for packer and h5py, processes for the others. Packer also computes
statistics and checksums and flushes to the disk; peers are not asked to. The peers decode and resize with the
fastest exact antialiased way that was found (see `photo`). Between runs the disk is left to settle, untimed.

Seen, 3,068 photos of 400x533, 28 KB each (2 cores of a Xeon with AVX-512, 2 workers, medians of 3 rounds;
packer 0.1.0, simplejpeg 1.9.0, torch 2.15.0, h5py 3.16.0, litdata 0.2.76, mosaicml-streaming 0.13.0,
datasets 5.0.1, webdataset 1.0.2; ffcv 1.0.2, measured before, was at 0.31 of the bare decode):

                stored as      images/s  spread  x packer  x decode     MB
    bare decode                   2,646      5%      1.41      1.00      0
    packer      HDF5, raw         1,876      7%      1.00      0.71    609
    h5py        HDF5, raw           778      1%      0.41      0.29    603
    litdata     chunks, raw         709     14%      0.39      0.27    603
    streaming   MDS, raw            726      2%      0.39      0.28    603
    datasets    arrow, JPEG         927      5%      0.50      0.36     53
    webdataset  tar, JPEG           930      6%      0.48      0.35     65
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from importlib import import_module, metadata
from importlib.util import find_spec
from itertools import islice, product
from multiprocessing import get_context, set_start_method
from pathlib import Path
from statistics import median
from typing import Any

import h5py
import numpy as np
import simplejpeg
from numpy.typing import NDArray

import packer
from packer.convert.image_conversion import convert_images
from packer.errors import PackerError, UsageError
from packer.inputs.sources import open_source
from packer.pixels.maker import decoder_versions

Pixels = NDArray[np.uint8]
Sample = tuple[str, int]

QUALITY = 90  # of peers that store JPEGs
LIMIT = "bare decode"


@dataclass(frozen=True)
class Job:
    """What each converter is asked for. out: a path that does not exist yet, in a folder that does."""

    folder: str
    out: str
    size: int
    workers: int


@dataclass(frozen=True)
class Run:
    """What one conversion took and left: wall seconds, images found in the output, bytes of the output."""

    seconds: float
    images: int
    bytes: int


@dataclass(frozen=True)
class Converter:
    """A way to convert. stored: how the images are; modules: what it imports, before the clock starts.

    count: opens the output and counts the images that are really there.
    """

    stored: str
    modules: tuple[str, ...]
    convert: Callable[[Job], None]
    count: Callable[[str], int]


# What the peers share


def list_samples(folder: str) -> list[Sample]:
    """Every image with the number of its class, as each peer's tutorial lists a folder of class folders."""
    classes = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir())
    return [
        (entry.path, label)
        for label, name in enumerate(classes)
        for entry in os.scandir(os.path.join(folder, name))
    ]


def photo(path: str, size: int) -> Pixels:
    """Read, decode, crop the centre, resize antialiased. Returns: uint8 [size, size, 3], contiguous.

    Of a bare decode's speed on the clothing photos, one thread: this 0.59, the same with OpenCV's INTER_AREA
    0.41, cv2.imdecode + INTER_AREA 0.41, simplejpeg + Pillow 0.34, Pillow alone 0.30. The resize is the one
    that torchvision.transforms.v2 uses; it is vectorised for channels-last bytes.
    """
    torch = import_module("torch")
    with open(path, "rb") as file:
        pixels = simplejpeg.decode_jpeg(file.read(), "RGB")
    side = min(pixels.shape[:2])
    top, left = (pixels.shape[0] - side) // 2, (pixels.shape[1] - side) // 2
    square = np.ascontiguousarray(pixels[top : top + side, left : left + side])
    planes = torch.from_numpy(square).permute(2, 0, 1)[None]
    small = torch.nn.functional.interpolate(planes, (size, size), mode="bilinear", antialias=True)
    return np.ascontiguousarray(small[0].permute(1, 2, 0).numpy())


def jpeg(path: str, size: int) -> bytes:
    """The photo as a JPEG again, with Pillow's chroma subsampling but a faster encoder."""
    encoded: bytes = simplejpeg.encode_jpeg(photo(path, size), quality=QUALITY, colorsubsampling="420")
    return encoded


def _in_processes(work: Callable[[int, list[Sample]], None], job: Job) -> None:
    """Call work(number, its share of the samples) in as many processes as there are workers."""
    samples = list_samples(job.folder)
    with ProcessPoolExecutor(job.workers) as pool:
        shares = [samples[worker :: job.workers] for worker in range(job.workers)]
        list(pool.map(work, range(job.workers), shares))


# The converters


def convert_packer(job: Job) -> None:
    """The subject."""
    convert_images(job.folder, job.out, format="h5", size=job.size, any_size=True, workers=job.workers)


def convert_h5py(job: Job) -> None:
    """A script as one writes it: decode in threads, write slices of 256 images; the decoders release the GIL."""
    samples = list_samples(job.folder)
    with h5py.File(job.out, "w") as file, ThreadPoolExecutor(job.workers) as pool:
        images = file.create_dataset("image", (len(samples), job.size, job.size, 3), np.uint8)
        file["label"] = np.array([label for _, label in samples])
        decoded = pool.map(partial(photo, size=job.size), [path for path, _ in samples])
        for start in range(0, len(samples), 256):
            batch = np.stack(list(islice(decoded, 256)))
            images[start : start + len(batch)] = batch


def _count_h5py(out: str) -> int:
    """Rows that are not all zeros, as rows are before they are written."""
    with h5py.File(out) as file:
        return sum(bool(row.any()) for row in file["image"])


def convert_datasets(job: Job) -> None:
    """Dataset.from_generator, whose processes share out a list in gen_kwargs and write Arrow files at once.

    0.73 of packer's speed, where from_dict, map(num_proc) and save_to_disk, which writes twice, came to 0.63.
    """
    datasets = import_module("datasets")
    datasets.disable_progress_bars()
    datasets.Dataset.from_generator(
        _datasets_rows,
        features=datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")}),
        cache_dir=job.out,
        gen_kwargs={"samples": list_samples(job.folder), "size": job.size},
        num_proc=job.workers,
    )


def _datasets_rows(samples: list[Sample], size: int) -> Iterator[dict[str, Any]]:
    """Already encoded, so that datasets does not do it with Pillow."""
    for path, label in samples:
        yield {"image": {"bytes": jpeg(path, size), "path": None}, "label": label}


def _count_datasets(out: str) -> int:
    dataset = import_module("datasets").Dataset
    return sum(dataset.from_file(str(path)).num_rows for path in Path(out).rglob("*.arrow"))


def convert_ffcv(job: Job) -> None:
    """Raw pixels, as in docs.ffcv.io/writing_datasets; its own resize cannot crop, so the dataset does both."""
    writer, fields = import_module("ffcv.writer"), import_module("ffcv.fields")
    columns = {"image": fields.RGBImageField(write_mode="raw"), "label": fields.IntField()}
    photos = _PhotoDataset(list_samples(job.folder), job.size)
    writer.DatasetWriter(job.out, columns, num_workers=job.workers).from_indexed_dataset(photos)


class _PhotoDataset:
    """What ffcv calls an indexed dataset."""

    def __init__(self, samples: list[Sample], size: int) -> None:
        self.samples, self.size = samples, size

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[Pixels, int]:
        path, label = self.samples[index]
        return photo(path, self.size), label


def _count_ffcv(out: str) -> int:
    """Samples that point to pixels."""
    return int(np.count_nonzero(import_module("ffcv.reader").Reader(out).metadata["f0"]["data_ptr"]))


def convert_litdata(job: Job) -> None:
    """Raw pixels, with the chunks of its README; forked, for spawned workers would import torch again."""
    # It empties both folders before it starts. Their defaults are chunks/ and data/ in the system's temporary
    # directory, where they may be somebody's: these stay inside the scratch directory.
    scratch = os.path.dirname(job.out)
    os.environ["DATA_OPTIMIZER_CACHE_FOLDER"] = os.path.join(scratch, "litdata-chunks")
    os.environ["DATA_OPTIMIZER_DATA_CACHE_FOLDER"] = os.path.join(scratch, "litdata-data")
    import_module("litdata").optimize(
        partial(_litdata_sample, size=job.size),
        list_samples(job.folder),
        job.out,
        num_workers=job.workers,
        chunk_bytes="64MB",
        reorder_files=False,
        start_method="fork",
        verbose=False,
    )


def _litdata_sample(sample: Sample, size: int) -> dict[str, Any]:
    return {"image": photo(sample[0], size), "label": sample[1]}


def _count_litdata(out: str) -> int:
    return len(import_module("litdata").StreamingDataset(out))


def convert_streaming(job: Job) -> None:
    """MDS, raw pixels: a writer a process, then merge_index, as in its guide to parallel conversion."""
    _in_processes(partial(_write_mds, out=job.out, size=job.size), job)
    import_module("streaming.base.util").merge_index(job.out, keep_local=True)


def _write_mds(worker: int, samples: list[Sample], *, out: str, size: int) -> None:
    """One worker's shards, uncompressed and unhashed: the defaults."""
    columns = {"image": f"ndarray:uint8:{size},{size},3", "label": "int"}
    with import_module("streaming").MDSWriter(out=f"{out}/{worker}", columns=columns) as writer:
        for path, label in samples:
            writer.write({"image": photo(path, size), "label": label})


def _count_streaming(out: str) -> int:
    return sum(shard["samples"] for shard in json.loads(Path(out, "index.json").read_text())["shards"])


def convert_webdataset(job: Job) -> None:
    """JPEGs in tar files, a ShardWriter a process, with its default of 100,000 samples or 3 GB a shard."""
    os.mkdir(job.out)
    _in_processes(partial(_write_tar, out=job.out, size=job.size), job)


def _write_tar(worker: int, samples: list[Sample], *, out: str, size: int) -> None:
    with import_module("webdataset").ShardWriter(f"{out}/{worker}-%06d.tar", verbose=0) as writer:
        for number, (path, label) in enumerate(samples):
            writer.write({"__key__": f"{worker}-{number:08}", "jpg": jpeg(path, size), "cls": label})


def _count_webdataset(out: str) -> int:
    count = 0
    for path in Path(out).glob("*.tar"):
        with tarfile.open(path) as shard:
            count += sum(name.endswith(".jpg") for name in shard.getnames())
    return count


CONVERTERS: Mapping[str, Converter] = {
    "packer": Converter("HDF5, raw", (), convert_packer, _count_h5py),
    "h5py": Converter("HDF5, raw", ("torch",), convert_h5py, _count_h5py),
    "ffcv": Converter("beton, raw", ("torch", "ffcv"), convert_ffcv, _count_ffcv),
    "litdata": Converter("chunks, raw", ("torch", "litdata"), convert_litdata, _count_litdata),
    "streaming": Converter("MDS, raw", ("torch", "streaming"), convert_streaming, _count_streaming),
    "datasets": Converter("arrow, JPEG", ("torch", "datasets"), convert_datasets, _count_datasets),
    "webdataset": Converter("tar, JPEG", ("torch", "webdataset"), convert_webdataset, _count_webdataset),
}
PIP = {"streaming": "mosaicml-streaming"}  # where pip knows a module by another name


# Measuring


def run(name: str, job: Job) -> Run:
    """Convert once. For a fresh process: what it and its workers print goes to a file beside the output."""
    scratch = os.path.dirname(job.out)
    with open(os.path.join(scratch, "log"), "a") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    # One thread in each of the workers; and litdata asks PyPI for a newer version unless told not to.
    os.environ |= {"OMP_NUM_THREADS": "1", "LITDATA_DISABLE_VERSION_CHECK": "1"}
    # Whatever the peers put aside stays in the scratch directory, too.
    tempfile.tempdir = os.environ["TMPDIR"] = scratch
    # A spawned process spawns its own, and the peers' workers would import torch again on the clock.
    set_start_method("fork", force=True)
    if name == LIMIT:
        return bare_decode(job)
    converter = CONVERTERS[name]
    for module in converter.modules:
        import_module(module)
    began = time.perf_counter()
    converter.convert(job)
    seconds = time.perf_counter() - began
    out = Path(job.out)
    files = [path for path in out.rglob("*") if path.is_file()] if out.is_dir() else [out]
    return Run(seconds, converter.count(job.out), sum(path.stat().st_size for path in files))


def bare_decode(job: Job) -> Run:
    """The limit: decode files that lie in memory into reused buffers, a thread a worker."""
    files = [Path(path).read_bytes() for path, _ in list_samples(job.folder)]

    def decode(share: list[bytes]) -> None:
        buffer = np.empty(0, np.uint8)
        for data in share:
            height, width, _, _ = simplejpeg.decode_jpeg_header(data)
            if buffer.size < height * width * 3:
                buffer = np.empty(height * width * 3, np.uint8)
            simplejpeg.decode_jpeg(data, "RGB", buffer=buffer)

    with ThreadPoolExecutor(job.workers) as pool:
        began = time.perf_counter()
        list(pool.map(decode, [files[worker :: job.workers] for worker in range(job.workers)]))
        return Run(time.perf_counter() - began, len(files), 0)


def measure(names: Sequence[str], folder: str, size: int, workers: int, rounds: int) -> dict[str, list[Run]]:
    """Each name in turn, round by round. Raises: RuntimeError if one fails, or loses an image."""
    expected = len(list_samples(folder))
    runs: dict[str, list[Run]] = {name: [] for name in names}
    for number, name in product(range(rounds), names):
        with tempfile.TemporaryDirectory(prefix="converters-") as scratch:
            os.sync()
            try:
                with ProcessPoolExecutor(1, get_context("spawn")) as process:
                    job = Job(folder, os.path.join(scratch, "out"), size, workers)
                    result = process.submit(run, name, job).result()
            except Exception as error:
                log = Path(scratch, "log")
                printed = log.read_text(errors="replace") if log.exists() else ""
                raise RuntimeError(f"{name}: failed with {error!r}. {printed}") from error
        if result.images != expected:
            raise RuntimeError(f"{name}: its output holds {result.images} images; {expected} went in.")
        runs[name].append(result)
        print(f"round {number + 1}: {name} {result.images / result.seconds:,.0f}/s", file=sys.stderr)
    return runs


def report(runs: Mapping[str, Sequence[Run]]) -> str:
    """One line a converter: median images/s and its spread, medians of the ratios of a round, output size."""
    lines = [f"{'':12}{'stored as':14}{'images/s':>9}{'spread':>8}{'x packer':>10}{'x decode':>10}{'MB':>7}"]
    for name, own in runs.items():
        rates = [run.images / run.seconds for run in own]
        rate = median(rates)
        lines.append(
            f"{name:12}{CONVERTERS[name].stored if name in CONVERTERS else '':14}{rate:9,.0f}"
            f"{(max(rates) - min(rates)) / rate:8.0%}{_ratio(own, runs['packer']):10.2f}"
            f"{_ratio(own, runs[LIMIT]):10.2f}{own[0].bytes / 1e6:7,.0f}"
        )
    return "\n".join(lines)


def _ratio(own: Sequence[Run], other: Sequence[Run]) -> float:
    return median(b.seconds / a.seconds for a, b in zip(own, other, strict=True))


def conditions(names: Sequence[str]) -> dict[str, str]:
    """The machine, and the version of everything that runs."""
    cpu = platform.processor() or platform.machine()
    with suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as file:
        cpu = next((line.partition(":")[2].strip() for line in file if line.startswith("model name")), cpu)
    used = sorted({module for name in names if name in CONVERTERS for module in CONVERTERS[name].modules})
    versions = {"packer": packer.__version__, "Python": platform.python_version(), **decoder_versions()}
    versions |= {pip: metadata.version(pip) for pip in ["h5py", "numpy", *(PIP.get(m, m) for m in used)]}
    return {"cpu": cpu, "cores": str(os.cpu_count()), **versions}


@contextmanager
def class_folder(source: str) -> Iterator[str]:
    """The source itself if it is a folder, else a temporary one with its files. Raises: PackerError."""
    with open_source(source) as opened, tempfile.TemporaryDirectory(prefix="converters-") as unpacked:
        if opened.classes is None or not all(key.lower().endswith((".jpg", ".jpeg")) for key in opened.keys):
            raise UsageError(
                f"{source}: not only class folders of JPEGs; this benchmark needs them. Pass others."
            )
        if os.path.isdir(source):
            yield source
            return
        for index, key in enumerate(opened.keys):
            path = Path(unpacked, key)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(opened.read(index))
        yield unpacked


def main(argv: list[str] | None = None) -> int:
    """Measure and print. Returns: the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    peers = [name for name in CONVERTERS if name != "packer"]
    parser.add_argument("source", nargs="?", help="folder of class folders of JPEGs, or an archive of one")
    parser.add_argument("--size", type=int, default=256, help="side of the result in pixels")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", metavar="NAME,...", help=f"peers: some of {', '.join(peers)}")
    parser.add_argument("--json", metavar="FILE", help="write every run here, too")
    options = parser.parse_args(argv)
    wanted = options.only.split(",") if options.only else peers
    for name in wanted:
        if name not in peers:
            parser.error(f"--only {name}: unknown; {', '.join(peers)} are known. Pass some of them.")
    data = os.environ.get("PACKER_DATA")
    if options.source is None and data is None:
        parser.error(
            "no photos: pass a folder of class folders, or set PACKER_DATA to where clothing.tar lies"
        )
    source = options.source or os.path.join(str(data), "clothing.tar", "train")

    names = [LIMIT, "packer"]
    for name in wanted:
        missing = [PIP.get(m, m) for m in CONVERTERS[name].modules if find_spec(m) is None]
        if missing:
            print(f"{name}: not installed: pip install {' '.join(missing)}")
        else:
            names.append(name)
    try:
        with class_folder(source) as folder:
            count = len(list_samples(folder))
            runs = measure(names, folder, options.size, options.workers, options.rounds)
    except PackerError as error:
        parser.error(str(error))
    machine = conditions(names)
    print(", ".join(f"{name} {value}" for name, value in machine.items()))
    print(
        f"{count:,} photos to {options.size} px, {options.workers} workers; {options.rounds} rounds, interleaved"
    )
    print(f"\n{report(runs)}")
    if options.json:
        record = {"conditions": machine, "options": vars(options), "runs": runs}
        Path(options.json).write_text(json.dumps(record, default=asdict, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
