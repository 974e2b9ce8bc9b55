"""Converting a folder of photos: packer beside other converters, and all of them beside the bare decoder.

    python benchmarks/converters.py photos/                 one folder a class, JPEGs
    python benchmarks/converters.py clothing.tar/train      an archive, unpacked first
    PACKER_DATA=data python benchmarks/converters.py        data/clothing.tar/train

Peers are no dependencies of packer; those that are not installed are named with the line that brings them.
ffcv also needs pkg-config, libturbojpeg0-dev and libopencv-dev.

Every run is a fresh process that has imported what it needs before the clock starts, and goes from the folder
to closed files: `--workers` threads for packer and h5py, processes for the others. Packer also computes
statistics and checksums and flushes to the disk; nobody else does. The peers decode and resize with the
fastest exact antialiased way that was found (see `photo`). Between runs the disk is left to settle, untimed.

Seen, 2 workers, medians of 3 rounds (RESULT):

    RESULT
"""

from __future__ import annotations

import json
import os
import tarfile
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import simplejpeg
from numpy.typing import NDArray

from packer.convert.images import convert_images

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


def in_processes(work: Callable[[int, list[Sample]], None], job: Job) -> None:
    """Call work(number, its share of the samples) in as many processes as there are workers."""
    samples = list_samples(job.folder)
    with ProcessPoolExecutor(job.workers, get_context("fork")) as pool:
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


def count_h5py(out: str) -> int:
    """Rows that are not all zeros, as rows are before they are written."""
    with h5py.File(out) as file:
        return sum(bool(row.any()) for row in file["image"])


def convert_datasets(job: Job) -> None:
    """Paths -> map in processes -> save_to_disk, as in huggingface.co/docs/datasets/image_process."""
    datasets = import_module("datasets")
    datasets.disable_progress_bars()
    paths, labels = zip(*list_samples(job.folder), strict=True)
    features = datasets.Features({"label": datasets.Value("int64"), "image": datasets.Image()})
    datasets.Dataset.from_dict({"path": paths, "label": labels}).map(
        partial(datasets_row, size=job.size),
        input_columns="path",
        remove_columns="path",
        features=features,
        num_proc=job.workers,
        # A fixed name of the result saves hashing the function, and nothing is looked up in a cache.
        new_fingerprint="photos",
    ).save_to_disk(job.out)


def datasets_row(path: str, size: int) -> dict[str, Any]:
    """Already encoded, so that datasets does not do it with Pillow."""
    return {"image": {"bytes": jpeg(path, size), "path": None}}


def count_datasets(out: str) -> int:
    """Rows with an image."""
    images = import_module("datasets").load_from_disk(out).with_format("arrow")["image"]
    return sum(len(row["bytes"].as_py()) > 0 for row in images)


def convert_ffcv(job: Job) -> None:
    """Raw pixels, as in docs.ffcv.io/writing_datasets; its own resize cannot crop, so the dataset does both."""
    writer, fields = import_module("ffcv.writer"), import_module("ffcv.fields")
    columns = {"image": fields.RGBImageField(write_mode="raw"), "label": fields.IntField()}
    photos = PhotoDataset(list_samples(job.folder), job.size)
    writer.DatasetWriter(job.out, columns, num_workers=job.workers).from_indexed_dataset(photos)


class PhotoDataset:
    """What ffcv calls an indexed dataset."""

    def __init__(self, samples: list[Sample], size: int) -> None:
        self.samples, self.size = samples, size

    def __len__(self) -> int:
        """Count the images."""
        return len(self.samples)

    def __getitem__(self, index: int) -> tuple[Pixels, int]:
        """One image and its class."""
        path, label = self.samples[index]
        return photo(path, self.size), label


def count_ffcv(out: str) -> int:
    """Samples that point to pixels."""
    return int(np.count_nonzero(import_module("ffcv.reader").Reader(out).metadata["f0"]["data_ptr"]))


def convert_litdata(job: Job) -> None:
    """Raw pixels, with the chunks of its README; forked, for spawned workers would import torch again."""
    # It looks for a newer version of itself, and writes to the temporary directory before it moves its chunks.
    os.environ["DATA_OPTIMIZER_CACHE_FOLDER"] = os.path.join(os.path.dirname(job.out), "litdata-cache")
    import_module("litdata").optimize(
        partial(litdata_sample, size=job.size),
        list_samples(job.folder),
        job.out,
        num_workers=job.workers,
        chunk_bytes="64MB",
        reorder_files=False,
        start_method="fork",
        verbose=False,
    )


def litdata_sample(sample: Sample, size: int) -> dict[str, Any]:
    """Pixels and class."""
    return {"image": photo(sample[0], size), "label": sample[1]}


def count_litdata(out: str) -> int:
    """Samples in the index."""
    return len(import_module("litdata").StreamingDataset(out))


def convert_streaming(job: Job) -> None:
    """MDS, raw pixels: a writer a process, then merge_index, as in its guide to parallel conversion."""
    in_processes(partial(write_mds, out=job.out, size=job.size), job)
    import_module("streaming.base.util").merge_index(job.out, keep_local=True)


def write_mds(worker: int, samples: list[Sample], *, out: str, size: int) -> None:
    """One worker's shards, uncompressed and unhashed: the defaults."""
    columns = {"image": f"ndarray:uint8:{size},{size},3", "label": "int"}
    with import_module("streaming").MDSWriter(out=f"{out}/{worker}", columns=columns) as writer:
        for path, label in samples:
            writer.write({"image": photo(path, size), "label": label})


def count_streaming(out: str) -> int:
    """Samples in the shards that the merged index names."""
    index = json.loads(Path(out, "index.json").read_text())
    return sum(shard["samples"] for shard in index["shards"])


def convert_webdataset(job: Job) -> None:
    """JPEGs in tar files, a ShardWriter a process, with its default of 100,000 samples or 3 GB a shard."""
    os.mkdir(job.out)
    in_processes(partial(write_tar, out=job.out, size=job.size), job)


def write_tar(worker: int, samples: list[Sample], *, out: str, size: int) -> None:
    """One worker's shards."""
    with import_module("webdataset").ShardWriter(f"{out}/{worker}-%06d.tar", verbose=0) as writer:
        for number, (path, label) in enumerate(samples):
            writer.write({"__key__": f"{worker}-{number:08}", "jpg": jpeg(path, size), "cls": label})


def count_webdataset(out: str) -> int:
    """JPEGs in the tar files."""
    count = 0
    for path in Path(out).glob("*.tar"):
        with tarfile.open(path) as shard:
            count += sum(name.endswith(".jpg") for name in shard.getnames())
    return count


CONVERTERS: Mapping[str, Converter] = {
    "packer": Converter("HDF5, raw", (), convert_packer, count_h5py),
    "h5py": Converter("HDF5, raw", ("torch",), convert_h5py, count_h5py),
    "ffcv": Converter("beton, raw", ("torch", "ffcv"), convert_ffcv, count_ffcv),
    "litdata": Converter("chunks, raw", ("torch", "litdata"), convert_litdata, count_litdata),
    "streaming": Converter("MDS, raw", ("torch", "streaming"), convert_streaming, count_streaming),
    "datasets": Converter("arrow, JPEG", ("torch", "datasets"), convert_datasets, count_datasets),
    "webdataset": Converter("tar, JPEG", ("torch", "webdataset"), convert_webdataset, count_webdataset),
}
DISTRIBUTIONS = {"streaming": "mosaicml-streaming"}  # where pip knows a module by another name


# Measuring


def run(name: str, job: Job, log: str) -> Run:
    """Convert once; for a fresh process, of which everything that is printed goes to the log."""
    with open(log, "a") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    # One thread in each of the workers; and litdata asks PyPI for a newer version unless told not to.
    os.environ |= {"OMP_NUM_THREADS": "1", "LITDATA_DISABLE_VERSION_CHECK": "1"}
    if name == LIMIT:
        return bare_decode(job)
    converter = CONVERTERS[name]
    for module in converter.modules:
        import_module(module)
    began = time.perf_counter()
    converter.convert(job)
    seconds = time.perf_counter() - began
    return Run(seconds, converter.count(job.out), stored_bytes(Path(job.out)))


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


def stored_bytes(out: Path) -> int:
    """Size of a file, or of all files in a folder."""
    return sum(path.stat().st_size for path in (out.rglob("*") if out.is_dir() else [out]) if path.is_file())


def measure(names: Sequence[str], folder: str, size: int, workers: int, rounds: int) -> dict[str, list[Run]]:
    """Each name in turn, round by round. Raises: RuntimeError when an output does not hold every image."""
    expected = len(list_samples(folder))
    runs: dict[str, list[Run]] = {name: [] for name in names}
    for number in range(rounds):
        for name in names:
            with tempfile.TemporaryDirectory(prefix="converters-") as scratch:
                job = Job(folder, os.path.join(scratch, "out"), size, workers)
                log = os.path.join(scratch, "log")
                os.sync()
                try:
                    with ProcessPoolExecutor(1, get_context("spawn")) as process:
                        result = process.submit(run, name, job, log).result()
                except Exception as error:
                    raise RuntimeError(f"{name}: {error!r}; it printed:\n{Path(log).read_text()}") from error
            if result.images != expected:
                raise RuntimeError(f"{name}: its output holds {result.images} images; {expected} went in.")
            runs[name].append(result)
            print(f"round {number + 1}: {name} {result.images / result.seconds:,.0f}/s", file=sys.stderr)
    return runs


def report(runs: Mapping[str, Sequence[Run]]) -> list[str]:
    """One line a converter: median images/s, medians of the ratios of the same round, size of the output."""
    lines = [f"{'':12}{'stored as':14}{'images/s':>9}{'x packer':>10}{'of decode':>11}{'MB':>8}"]
    for name, own in runs.items():
        rate = median(run.images / run.seconds for run in own)
        stored = CONVERTERS[name].stored if name != LIMIT else ""
        size = f"{own[0].bytes / 1e6:,.0f}" if name != LIMIT else ""
        ratios = [paired(own, runs[other]) if other in runs else math.nan for other in ("packer", LIMIT)]
        lines.append(f"{name:12}{stored:14}{rate:9,.0f}{ratios[0]:10.2f}{ratios[1]:11.2f}{size:>8}")
    return lines


def paired(own: Sequence[Run], other: Sequence[Run]) -> float:
    """How many times as fast, median over rounds."""
    return median(b.seconds / a.seconds for a, b in zip(own, other, strict=True))


def conditions(names: Sequence[str]) -> dict[str, str]:
    """The machine, and the version of everything that runs."""
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        cpu = next((line.partition(":")[2].strip() for line in file if line.startswith("model name")), "")
    used = {module for name in names if name != LIMIT for module in CONVERTERS[name].modules}
    distributions = sorted(DISTRIBUTIONS.get(module, module) for module in used)
    versions = {name: metadata.version(name) for name in ("h5py", "numpy", "simplejpeg", *distributions)}
    return {
        "cpu": cpu or platform.machine(),
        "cores": str(os.cpu_count()),
        "Python": platform.python_version(),
    } | versions


@contextmanager
def class_folder(source: str) -> Iterator[str]:
    """The source itself if it is a folder, else a temporary one with everything in it. Raises: PackerError."""
    if os.path.isdir(source):
        yield source
        return
    with tempfile.TemporaryDirectory(prefix="converters-") as folder:
        with open_source(source) as opened:
            for index, key in enumerate(opened.keys):
                path = Path(folder, key)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(opened.read(index))
        yield folder


def main(argv: list[str] | None = None) -> int:
    """Measure and print. Returns: the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", nargs="?", help="folder of class folders of JPEGs, or an archive of one")
    parser.add_argument("--size", type=int, default=256, help="side of the result in pixels")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", metavar="NAME,...", help=f"some of {', '.join(CONVERTERS)}")
    parser.add_argument("--json", metavar="FILE", help="write every run here, too")
    options = parser.parse_args(argv)
    wanted = options.only.split(",") if options.only else list(CONVERTERS)
    if unknown := [name for name in wanted if name not in CONVERTERS]:
        parser.error(f"--only {unknown[0]}: unknown; {', '.join(CONVERTERS)} are known. Pass some of them.")
    if options.source is None and "PACKER_DATA" not in os.environ:
        parser.error(
            "no photos: pass a folder of class folders, or set PACKER_DATA to where clothing.tar lies"
        )
    source = options.source or os.path.join(os.environ["PACKER_DATA"], "clothing.tar", "train")

    names = [LIMIT]
    for name in wanted:
        missing = [module for module in CONVERTERS[name].modules if find_spec(module) is None]
        if missing:
            distributions = " ".join(DISTRIBUTIONS.get(module, module) for module in missing)
            print(f"{name}: not installed: pip install {distributions}")
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
    print("\n".join(["", *report(runs)]))
    if options.json:
        record = {"conditions": machine, "options": vars(options), "runs": runs}
        Path(options.json).write_text(json.dumps(record, default=asdict, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
