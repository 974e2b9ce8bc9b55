"""Loading from an object store, cold and warm: packer, LitData, and a bare client that reads the same bytes.

    python benchmarks/remote.py photos/ --work bench/ --latency 25 --rate 50

A server process answers all of them with S3's protocol: each request after --latency ms, each connection at
--rate MB/s (0: unlimited). Every run is a process with an empty cache. Cold counts from the opening of the
dataset to the end of the first epoch, "opened" from the end of the opening; warm is the median of later
epochs. Both loaders shuffle, and cache everything in a folder; LitData has a worker for each core. In the
first round an epoch of each is compared with the pack, row by row. The stores are those of loaders.py in
--work.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

from lanes import photos
from lanes.content import check
from lanes.lane import PACK_H5, Rows, files_of
from lanes.peers import LITDATA, write_litdata
from lanes.registry import STORES

from packer.bench.hardware_limits import load, machine, versions
from packer.machine import cores

ROOT = Path(__file__).parents[1]
LANES = ("bare", "packer", "litdata")
CONNECTIONS, PART = 16, 8 << 20
WARM_EPOCHS = 2


def serve(objects: Mapping[str, str], latency: float, rate: float) -> None:
    """Serve files by key: `latency` ms a request, `rate` MB/s (0: unlimited). Prints the address."""
    sys.path.insert(0, str(ROOT))
    from tests.remote import object_server
    from tests.remote.object_server import Handler, ObjectServer

    object_server.digest = digest = cache(object_server.digest.__wrapped__)  # without a limit of objects

    def slowly(handler: Handler, body: bytes) -> bool:
        time.sleep(latency / 1000)
        if not rate:
            return False
        handler.send_response(handler.status)
        for name, value in {"Content-Length": str(len(body)), **handler.extra}.items():
            handler.send_header(name, value)
        handler.end_headers()
        began = time.perf_counter()
        for at in range(0, len(body), 1 << 18):
            handler.wfile.write(body[at : at + (1 << 18)])
            time.sleep(max(0.0, began + min(at + (1 << 18), len(body)) / rate / 1e6 - time.perf_counter()))
        return True

    server = ObjectServer()
    server.fault = slowly
    for key, file in objects.items():
        data = server.objects[key] = Path(file).read_bytes()
        digest(data)
    print(server.url, flush=True)
    server.serve_forever()


def bare(work: str) -> None:
    """Read the pack by ranges, over as many connections as packer uses."""
    import obstore
    from obstore.store import S3Store

    store = S3Store("bucket", client_options={"allow_http": True})
    size = os.path.getsize(f"{work}/{PACK_H5}")
    with ThreadPoolExecutor(CONNECTIONS) as pool:
        parts = pool.map(
            lambda at: len(obstore.get_range(store, PACK_H5, start=at, end=min(at + PART, size))),
            range(0, size, PART),
        )
        assert sum(parts) == size


def dataset(name: str, folder: str, batch: int) -> Callable[[], Iterable[Any]]:
    """Open a lane's loader. Returns a function that starts an epoch."""
    if name == "packer":
        from packer import PackedBatchDataset, open_pack

        ours = PackedBatchDataset(
            open_pack(f"s3://bucket/{PACK_H5}", folder), batch, shuffle=True, fields=["image", "label"]
        )
        return lambda: iter(ours)
    litdata, downloader = import_module("litdata"), import_module("litdata.streaming.downloader")
    downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True  # or its fast client refuses the address
    keys = ("endpoint_url", "aws_access_key_id", "aws_secret_access_key")
    options = dict(zip(keys, (os.environ["AWS_ENDPOINT_URL"], "key", "secret"), strict=True))
    streaming = litdata.StreamingDataset(
        f"s3://bucket/{LITDATA}",
        cache_dir=folder,
        shuffle=True,
        max_cache_size="100GB",
        storage_options=options,
    )
    loader = litdata.StreamingDataLoader(
        streaming, batch_size=batch, num_workers=cores(), persistent_workers=True, drop_last=False
    )
    return lambda: ((found["image"], found["label"]) for found in loader)


def lane(name: str, work: str, folder: str, batch: int, compared: bool) -> dict[str, float]:
    """Run a lane in this process. Returns images a second, and seconds to the first batch."""
    rows = Rows.of(work)
    import_module("obstore" if name == "bare" else name)  # what importing takes is not measured
    if name == "bare":
        began = time.perf_counter()
        bare(work)
        return {"opened": len(rows) / (time.perf_counter() - began)}
    found: dict[str, float] = {}
    rates = []
    began = time.perf_counter()
    epoch = dataset(name, folder, batch)
    opened = time.perf_counter()
    for number in range(1 + WARM_EPOCHS):
        started, count = time.perf_counter() if number else began, 0
        for images, _ in epoch():
            found.setdefault("first", time.perf_counter() - began)
            count += len(images)
        assert count == len(rows)
        rates.append(count / (time.perf_counter() - started))
        found.setdefault("opened", count / (time.perf_counter() - opened))
    if compared:
        check(epoch(), rows, exact=True)
    return {**found, "cold": rates[0], "warm": median(rates[1:])}


def main(argv: list[str] | None = None) -> int:
    """Measure, and print the medians."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", help="folder of JPEGs")
    parser.add_argument("--work", required=True, metavar="DIR", help="folder of the stores")
    parser.add_argument("--images", type=int, default=6000)
    parser.add_argument("--size", type=int, default=256, help="side in pixels, a power of two")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--latency", type=float, default=25, help="milliseconds a request")
    parser.add_argument("--rate", type=float, default=50, help="MB/s of a connection; 0: no limit")
    parser.add_argument("--json", metavar="FILE", help="also write all measurements to this file")
    parser.add_argument("--lane", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    work = str(Path(options.work, f"{options.images}-{options.size}px").resolve())
    if options.serve:
        files = [file for store in (PACK_H5, LITDATA) for file in files_of(f"{work}/{store}")]
        objects = {f"bucket/{os.path.relpath(file, work)}": file for file in files}
        serve(objects, options.latency, options.rate)
    if options.lane:
        name, folder, compared = options.lane
        print(json.dumps(lane(name, work, folder, options.batch, compared == "True")))
        return 0
    os.makedirs(work, exist_ok=True)
    photos.gather(options.source, options.images, work, cores())
    photos.pack(work, options.size)
    chosen = [name for name in LANES if name != "litdata" or find_spec(name)]
    for store, write in ((PACK_H5, STORES[PACK_H5].write), (LITDATA, write_litdata)):
        if not os.path.exists(f"{work}/{store}") and (store == PACK_H5 or "litdata" in chosen):
            write(Rows.of(work), f"{work}/part-{store}")
            os.rename(f"{work}/part-{store}", f"{work}/{store}")
    os.makedirs(f"{work}/{LITDATA}", exist_ok=True)
    passed = ("images", "size", "batch", "latency", "rate")
    given = [options.source, "--work", options.work]
    given += [text for name in passed for text in (f"--{name}", str(getattr(options, name)))]
    script = [sys.executable, __file__, *given]
    found: dict[str, list[dict[str, float]]] = {name: [] for name in chosen}
    before = load()
    with subprocess.Popen([*script, "--serve"], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        url = server.stdout.readline().strip()
        keys = {"AWS_ENDPOINT_URL": url, "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
        try:
            for number in range(options.rounds):
                for name in chosen:
                    with tempfile.TemporaryDirectory(dir=options.work) as folder:
                        run = [*script, "--lane", name, folder, str(not number)]
                        done = subprocess.run(
                            run, check=True, stdout=subprocess.PIPE, text=True, env={**os.environ, **keys}
                        )
                        found[name].append(json.loads(done.stdout.splitlines()[-1]))
        finally:
            server.kill()
    peers = {name: version(name) for name in ("obstore", *chosen[2:])}
    about = machine() | versions() | peers | {"load_before": before, "load_after": load()}
    print(", ".join(f"{name} {value}" for name, value in about.items()))
    print(", ".join(f"{name} {getattr(options, name):,}" for name in (*passed, "rounds")))
    for name, runs in found.items():
        print(name, *(f"{key} {median(run[key] for run in runs):,.2f}" for key in runs[0]), sep="  ")
    for key, other in (("opened", "bare"), ("cold", "litdata"), ("warm", "litdata")):
        ratios = [a[key] / b[key] for a, b in zip(found["packer"], found.get(other, ()), strict=False)]
        if ratios:
            print(
                f"packer, {key}: {median(ratios):.2f} of {other}'s ({min(ratios):.2f} to {max(ratios):.2f})"
            )
    if options.json:
        asked = {name: getattr(options, name) for name in (*passed, "rounds")}
        record = {"conditions": about, "options": asked, "rounds": found}
        Path(options.json).write_text(json.dumps(record, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
