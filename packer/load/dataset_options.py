"""What the arguments of the datasets mean on this machine: the order, the placement of rows, the device; each error names its argument.

An order or a placement is asked for, or chosen: by the pack, by size and by the free memory. Of that a share stays free for the
model, which may not exist yet, for the page cache and for other processes.
"""

from __future__ import annotations

import os
import re
import resource
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from packer.errors import FormatError, UsageError
from packer.filling.memory_pack import in_memory
from packer.format.header import Field
from packer.format.pack import Pack, open_pack
from packer.format.remote_pack import RemotePack
from packer.load.batch import size_of
from packer.load.pack_list import PackPaths
from packer.load.ranks import local_rank
from packer.orders.epochs import ENDS, Context, Member, RowOrder
from packer.orders.mixture import Mixture
from packer.orders.regions import Regions
from packer.orders.row_orders import BY_NAME, WINDOW_BYTES, Blocks, Rows, Sequential
from packer.orders.runs import Subset, one_run
from packer.read.gather import cut
from packer.read.row_reader import RowReader
from packer.read.row_selection import read_column
from packer.units import size

if TYPE_CHECKING:
    import torch

OUTPUTS = ("torch", "numpy")
AUTO = "auto"
# Smaller rows are read in runs. Of rows read one by one from a cold disk came 0.1 of what runs of 1 MiB gave at 4 KiB, 0.7 at
# 16 KiB and all of it at 64 KiB (4 threads, a virtual disk); and in memory a row of 112 bytes costs more to find than to copy.
SMALL_BYTES = 16 << 10
# A table above this is not expected in memory where it is read anew each epoch.
LARGE_BYTES = 1 << 30
# Blocks of a window for each row of a batch, where a block holds one class: the class counts of batches vary 1 + 1 / 32 times as much
# as in a uniform shuffle.
MIXING_BLOCKS = 32
# Of the memory at hand: the rest is for batches, the model and the epochs' other reads.
CACHED_SHARE = 0.7
# Of packs without weights that were all shuffled when they were made, so many are dealt evenly to batches, each in an order of its own.
# Each takes some 10 us of a batch.
DEALT_PACKS = 16
PLACEMENTS = ("auto", "gpu", "pinned", "ram", "disk")
GPU_SHARE = 8  # of the free device memory: weights, gradients and activations want the rest
HOST_SHARE = 4  # of the available memory: the pack's own pages may lie in the page cache besides

# File systems whose pages the kernel may have to ask another machine, or a program, for.
_REMOTE = re.compile(
    r"9p|afs|beegfs|ceph|cifs|fuse(\..*)?|gfs2|gpfs|lustre|nfs4?|ocfs2|orangefs|panfs|pvfs2|smb3|smbfs|wekafs"
)
_ESCAPED = re.compile(rb"\\([0-3][0-7]{2})")
_UNLIMITED = 1 << 60  # version 1 of control groups says "no limit" with a number near 2**63


def check_simple(shuffle: Any, verify: Any, report: Any) -> None:
    """Raise UsageError for values of these arguments that mean nothing."""
    if not isinstance(shuffle, bool):
        raise UsageError(
            f"shuffle={shuffle!r}: is neither True nor False. Pass one of them, or order={shuffle!r}."
        )
    if verify not in (None, "blocks"):
        raise UsageError(f"verify={verify!r}: is neither None nor 'blocks'. Pass one of them.")
    if report is not None and not callable(report):
        raise UsageError(f"report={report!r}: cannot be called with a line. Pass for example print.")


def check_output(output: str, device: str | int | torch.device) -> tuple[str, str]:
    """Return the output and the name of the device.

    A number means a CUDA device, as in torch. "auto" means this process's CUDA device, or "cpu" without one.
    """
    if isinstance(device, int):
        device = f"cuda:{device}"
    if device == "auto":
        device = auto_device() if output == "torch" else "cpu"
    if output not in OUTPUTS:
        raise UsageError(f"output={output!r}: is not one of 'torch', 'numpy'. Pass one of them.")
    if output == "numpy" and str(device) != "cpu":
        raise UsageError(
            f"output='numpy': device is {str(device)!r}; NumPy arrays live on 'cpu'. Pass output='torch'."
        )
    return output, str(device)


def auto_device() -> str:
    """Return the device that "auto" means: "cuda" where torch sees one, else "cpu".

    "cuda" is torch's current device, where a model goes that is moved to "cuda". A process of torchrun that has not chosen one
    would share the first with all others: there it is that of LOCAL_RANK.
    """
    try:
        import torch
    except ImportError:
        return "cpu"  # the dataset says what is missing
    if not torch.cuda.is_available():
        return "cpu"
    local = local_rank() or 0
    chosen = torch.cuda.current_device() != 0 or not 0 < local < torch.cuda.device_count()
    return "cuda" if chosen else f"cuda:{local}"


def parse_ends(ends: str | None, drop_last: bool, *, ordered: bool) -> str:
    """Return one of ENDS. Default: "even", or "uneven" if `ordered`, so that a sequential pass repeats no row."""
    if ends is None:
        return "drop" if drop_last else "uneven" if ordered else "even"
    if ends not in ENDS:
        raise UsageError(f"ends={ends!r}: is not one of {', '.join(map(repr, ENDS))}. Pass one of them.")
    if drop_last and ends != "drop":
        raise UsageError(f"drop_last=True with ends={ends!r}: they contradict each other. Pass one of them.")
    return ends


def parse_filled(
    path: PackPaths,
    cache: str | os.PathLike[str],
    convert: Mapping[str, Any] | None,
    options: Mapping[str, Any],
) -> tuple[str, str | os.PathLike[str], dict[str, Any]]:
    """Return source, pack and conversion options of a dataset that fills its pack. Raises UsageError."""
    if not isinstance(path, str | os.PathLike | Pack):
        raise UsageError(
            "cache=: is about one source that is to become a pack; a list of packs was given. Leave cache= out, or pass the source alone."
        )
    with suppress(FormatError):
        made = path if isinstance(path, Pack) else open_pack(path)
        raise UsageError(
            f"{made.path}: is a pack already; cache= is about images, or a table, that are to become one. Leave cache= out."
        )
    assert not isinstance(path, Pack)
    if not isinstance(cache, str | os.PathLike):
        raise UsageError(f"cache={cache!r}: is no path. Pass the name of the pack to be made.")
    if convert is not None and not isinstance(convert, Mapping):
        raise UsageError(f"convert={convert!r}: is no mapping. Pass for example convert={{'seed': 1}}.")
    for name in options.keys() & (convert or {}).keys():
        raise UsageError(f"{name}=: is given twice, in convert= too. Leave one out.")
    return os.fspath(path), cache, {**options, **(convert or {})}


def context(reader: RowReader, subset: Subset, global_batch: int, weights: Sequence[float] = ()) -> Context:
    """Return the properties of the pack and the machine that an order is bound to. weights: of its members, if they have any."""
    pack, fields = reader.pack, reader.fields

    def labels(name: str) -> NDArray[np.int64]:
        found = next((f for f in pack.fields if f.name == name), None)
        if found is None or found.shape != () or np.dtype(found.dtype).kind not in "iu":
            raise UsageError(
                f"{pack.path}: has no field {name!r} of one whole number a row. Pass another field."
            )
        return read_column(pack, name, subset).astype(np.int64)

    memory = available_memory()
    about = _facts(pack, fields, subset.rows, global_batch, memory)
    members: list[Member] = []
    if weights or 1 < len(pack.members) <= DEALT_PACKS:
        for number, (member, places) in enumerate(zip(pack.members, _places(pack, subset), strict=True)):
            own = memory * places.rows // max(1, subset.rows)
            facts = _facts(member, fields, places.rows, global_batch, own)
            members.append(Member(weights[number] if weights else places.rows, places, facts))
        members = [member for member in members if weights or member.places.rows]
    about = replace(about, labels=labels, pack_rows=pack.rows, place=subset.place)
    return replace(about, members=tuple(members), weighted=bool(weights))


def _facts(pack: Pack, fields: Sequence[Field], n: int, global_batch: int, memory: int) -> Context:
    """Return what an order of n rows of a pack is chosen by. memory: bytes that they may take."""
    stored = sum(
        extent.nbytes
        for part in pack.parts
        for f in fields
        for name in f.arrays
        for extent in part.header.extents[name]
    )
    return Context(
        n=n,
        row_bytes=stored // max(1, pack.rows),
        block_rows=pack.header.block_rows,
        global_batch=global_batch,
        # Rows of a pack joined of several lie as each of these has them: neighbours are of one pack.
        shuffled=pack.header.seed is not None and len(pack.members) < 2,
        coded=any(f.compressed for f in fields),
        medium=_medium(pack),
        memory_bytes=memory,
    )


def _medium(pack: Pack) -> str:
    """Return where the rows of a pack come from: see Context."""
    packs = pack.members or (pack,)
    if any(isinstance(one, RemotePack) for one in packs):
        return "remote"
    return "network" if any(remote_file_system(one.path) for one in packs) else "disk"


def _places(pack: Pack, subset: Subset) -> list[Subset]:
    """Return, for each member of a joined pack, its rows of a subset as numbers 0..subset.rows-1."""
    firsts = np.cumsum([0, *(member.rows for member in pack.members)])
    runs, owners = cut(firsts, subset.place(one_run(0, subset.rows)))
    ends = np.cumsum(runs.lengths)
    spans = np.stack([ends - runs.lengths, ends], axis=1)
    return [Subset(spans[owners == number]) for number in range(len(pack.members))]


def parse_order(order: str | RowOrder | None, shuffle: bool, about: Context) -> tuple[RowOrder, str]:
    """Return the order that the arguments of a dataset mean, bound, and a sentence that says why if it was chosen here, else "".

    order: a name, "auto", an order, or None: "sequential", or with shuffle what the pack alone decides (`shuffled_order`); of packs that
    have weights, the order of each.
    Raises UsageError for an unknown name, or shuffle=True with "sequential".
    """
    dealt = bool(about.members) and all(member.about.shuffled for member in about.members)
    if about.weighted or isinstance(order, Mixture) or (dealt and chosen_here(order, shuffle)):
        return _mixture(order, shuffle, about)
    if order is None:
        return (shuffled_order(about) if shuffle else Sequential()).bind(about), ""
    if order == AUTO:
        chosen, why = choose_order(about)
        return chosen.bind(about), why
    if isinstance(order, str) and order in BY_NAME:
        order = BY_NAME[order]()
    if isinstance(order, type) or not isinstance(order, RowOrder):
        raise UsageError(
            f"order={order!r}: is not one of {', '.join(map(repr, (*BY_NAME, AUTO)))}. Pass one of them,"
            " or an order such as packer.Blocks(window='1GB')."
        )
    if shuffle and order.fixed:
        raise UsageError(
            f"shuffle=True with order={order.name!r}: they contradict each other. Pass one of them."
        )
    return order.bind(about), ""


def _mixture(order: str | RowOrder | None, shuffle: bool, about: Context) -> tuple[Mixture, str]:
    """Return the mixture of packs that have weights, each in the order that the arguments mean for it; see parse_order."""
    mixture = order if isinstance(order, Mixture) else Mixture(order)
    if not about.weighted and isinstance(order, Mixture):
        raise UsageError(
            "order=Mixture(...): the dataset has no packs with weights. Pass a list such as [('a.h5', 0.7), ('b.h5', 0.3)],"
            " or another order."
        )
    whys: list[str] = []

    def choose(member: Context) -> RowOrder:
        chosen, why = parse_order(mixture.order, shuffle, member)
        whys.append(why)
        return chosen

    bound = mixture.of(about.members, about.global_batch, choose)
    return bound, " ".join(f"Pack {number + 1}: {why}" for number, why in enumerate(whys) if why)


def chosen_here(order: str | RowOrder | None, shuffle: bool) -> bool:
    """Return True if the arguments of a dataset leave the choice of an order to `parse_order`."""
    own = order.order if isinstance(order, Mixture) else order
    return own == AUTO or (own is None and shuffle)


def order_by_pack(order: str | RowOrder | None, about: Context) -> RowOrder | None:
    """Return the order that several ranks take instead of "auto", which looks at the machine; None for any other order."""
    if isinstance(order, Mixture) and order.order == AUTO:
        return parse_order(replace(order, order=None), True, about)[0]
    return parse_order(None, True, about)[0] if order == AUTO else None


def resumed_order(bound: RowOrder, record: Mapping[str, Any], *, chosen: bool) -> RowOrder:
    """Return the order to go on with after a state was loaded.

    bound: this dataset's. record: of the state's order. chosen: whether bound was chosen here, by order="auto" or by shuffle
    without an order: then any order that is chosen so is taken from the state, since another machine may choose another.
    Raises UsageError if the state has an order that this dataset cannot have.
    """
    name = record.get("name") if isinstance(record, Mapping) else None
    if isinstance(bound, Mixture):
        return bound.resumed(record, partial(resumed_order, chosen=chosen))
    if chosen and isinstance(name, str) and name in BY_NAME and not BY_NAME[name]().fixed:
        return BY_NAME[name]().resumed(record)
    return bound.resumed(record)


def shuffled_order(about: Context) -> RowOrder:
    """Return the order that shuffle=True means: as good as a uniform shuffle, on every machine the same, by the pack alone.

    A pack that was shuffled when it was made needs blocks: they read a disk as fast as slices, cost no more in memory, and
    batch-mates part each epoch, which those of a slice do not. Where rows are compressed, whole blocks, each decoded once. A pack
    at a URL is read in regions, so that each rank fetches its own part of it alone.

    In any other pack neighbours are alike, often of one class, and a window would have to hold some twenty blocks for each row
    of a batch: that takes every row by itself. Small rows of a large pack are read from a disk in short runs then, in a
    window of as many as it takes.
    """
    if about.medium == "remote":
        return Regions()
    if about.shuffled:
        return Blocks(whole=about.coded)
    if about.coded or about.row_bytes >= SMALL_BYTES or about.n * about.row_bytes <= LARGE_BYTES:
        return Rows()
    block = SMALL_BYTES // max(1, about.row_bytes)
    return Blocks(max(WINDOW_BYTES // about.row_bytes, MIXING_BLOCKS * about.global_batch * block), block)


def choose_order(about: Context) -> tuple[RowOrder, str]:
    """Return the best shuffle that rows can be read in at full speed, and a sentence that says why.

    "rows" where all stay in memory after the first epoch and are neither small nor compressed in blocks, unless they come
    from elsewhere; else what shuffle=True means (`shuffled_order`). Depends on this machine's memory: a resumed epoch takes its order
    from the state.
    """
    nbytes, memory = size(about.n * about.row_bytes), size(about.memory_bytes)
    made = f"the pack was {'' if about.shuffled else 'not '}shuffled when it was made"
    rows = f"rows of {size(about.row_bytes)}"
    resident = about.medium == "memory" or about.n * about.row_bytes <= CACHED_SHARE * about.memory_bytes
    stay = f"{nbytes} stay in {memory} of memory" if about.memory_bytes else f"{nbytes} stay in memory"
    order = shuffled_order(about)
    if isinstance(order, Regions):
        why = f"{nbytes} are fetched from elsewhere, each rank its own part of them alone"
    elif isinstance(order, Rows):
        why = f"{made}, so neighbours may be alike, and each row is drawn by itself"
    elif about.coded:
        why = f"rows are compressed in blocks of {about.block_rows:,}, which are decoded whole, and {made}"
    elif not resident:
        room = f"{memory} of memory" if about.memory_bytes else "an unknown amount of memory"
        source = "network file system" if about.medium == "network" else "disk"
        why = f"{nbytes} do not stay in {room}, so the {source} is read in long runs, and {made}"
    elif about.row_bytes >= SMALL_BYTES:
        order, why = Rows(), f"{stay}, where {rows} in any order cost no more than neighbours"
    else:
        why = f"{rows} come faster in runs than one by one, and {made}"
    return order, f"order={order.name!r}: {why}."


def parse_placement(
    placement: str, device: str, reader: RowReader, fields: Sequence[Field], subset: Subset, transformed: bool
) -> tuple[str, str]:
    """Return the placement and the reason for it. Raises UsageError."""
    if transformed:
        if placement not in ("auto", "disk"):
            raise UsageError(
                f"placement={placement!r} with transform: processes read the rows from the disk. Pass placement='disk'."
            )
        return "disk", "a Python transform's processes read the rows themselves"
    paths = [one.path for one in reader.pack.members or (reader.pack,)]
    return choose_placement(
        placement,
        device=device,
        nbytes=size_of(fields, subset.rows),
        decoded=any(f.codec for f in reader.fields),
        path=next(filter(remote_file_system, paths), paths[0]),
        present=placement != "disk" and in_memory(reader, fields, subset),
    )


def choose_placement(
    placement: str,
    *,
    path: str,
    device: str,
    nbytes: int,
    decoded: bool,
    present: bool = False,
) -> tuple[str, str]:
    """Return the placement, "gpu", "pinned", "ram" or "disk", and a phrase for the log that gives the reason.

    placement: one of PLACEMENTS. path: path of the pack. device: device of the batches. nbytes: bytes of the rows as they are
    loaded, without ragged fields. decoded: True if rows are stored as JPEG or compressed. present: True if a process of this
    machine holds them in memory already, so that they cost no more memory.

    Raises UsageError for a placement that this machine does not have, or that has no room.
    """
    if placement not in PLACEMENTS:
        raise UsageError(
            f"placement={placement!r}: is not one of {', '.join(map(repr, PLACEMENTS))}. Pass one of them."
        )
    if placement == "auto":
        return _chosen_placement(path, device, nbytes, decoded, present)
    if placement in ("gpu", "pinned") and not device.startswith("cuda"):
        raise UsageError(
            f"placement={placement!r}: device is {device!r}; it serves CUDA devices. Pass device='cuda', or placement='ram'."
        )
    return placement, _asked_placement(placement, device, nbytes, present)


def _chosen_placement(path: str, device: str, nbytes: int, decoded: bool, present: bool) -> tuple[str, str]:
    rows = f"{size(nbytes)} of rows"
    if not nbytes:
        return "disk", "no field has rows of one length"
    host = available_memory()
    fits = present or nbytes <= host // HOST_SHARE
    room = "are in memory already" if present else f"fit a quarter of {size(host)} of available memory"
    if device.startswith("cuda"):
        free = free_device_memory(device)
        if nbytes <= free // GPU_SHARE:
            return "gpu", f"{rows} fit an eighth of {size(free)} free on {device}"
        beyond = f"{rows} exceed an eighth of {size(free)} free on {device}"
        if fits:
            return "pinned", f"{beyond}, but {room}"
        return "disk", f"{beyond}, and a quarter of {size(host)} of available memory"
    remote = remote_file_system(path)
    reason = (
        "are stored encoded" if decoded else f"lie on {remote}, a network file system," if remote else None
    )
    if reason is None:
        return "disk", f"{rows} are read through the page cache, which all processes share"
    if fits:
        return "ram", f"{rows} {reason} and {room}"
    return "disk", f"{rows} {reason} but exceed a quarter of {size(host)} of available memory"


def _asked_placement(placement: str, device: str, nbytes: int, present: bool) -> str:
    """Return the log phrase for a placement that the user asked for. Raises UsageError if there is no room for the rows."""
    if placement == "disk":
        return "as asked"
    if not nbytes:
        raise UsageError(
            f"placement={placement!r}: no field has rows of one length; others stay on the disk. Pass placement='disk'."
        )
    if placement == "gpu":
        free, where, lower = free_device_memory(device), f"free on {device}", "'pinned' or 'disk'"
    elif present:
        return f"as asked; {size(nbytes)} of rows are in memory already"
    else:
        free, where, lower = available_memory(), "of available memory", "'disk'"
    if nbytes > free:
        raise UsageError(
            f"placement={placement!r}: the rows take {size(nbytes)}; there are {size(free)} {where}."
            f" Pass placement={lower}, fewer fields, or a subset."
        )
    return f"as asked; {size(nbytes)} of rows, {size(free)} {where}"


def free_device_memory(device: str) -> int:
    """Return the free bytes of a CUDA device."""
    import torch

    return int(torch.cuda.mem_get_info(torch.device(device))[0])


def available_memory() -> int:
    """Return the bytes of memory that this process can still use without swapping and without being killed.

    The least of the system's estimate, the room in its control groups (containers, batch systems) and in its address space.
    """
    least = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        with open("/proc/meminfo") as file:
            least = next(1024 * int(line.split()[1]) for line in file if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        pass
    return max(0, min([least, *_group_room("/proc/self/cgroup", "/sys/fs/cgroup"), *_address_room()]))


def _address_room() -> Iterator[int]:
    """Yield the bytes left under this process's limit on its address space (ulimit -v), if there is one."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY:
        taken = [int(line.split()[0]) for line in _lines("/proc/self/statm")]
        yield limit - os.sysconf("SC_PAGE_SIZE") * sum(taken)


def _group_room(groups: str, mounted: str) -> Iterator[int]:
    """Yield the bytes left under each memory limit of this process's control groups, versions 1 and 2.

    File pages count as used there, but the kernel frees them before it enforces the limit.
    Source: the kernel's cgroup-v1/memory and cgroup-v2.
    """
    for line in _lines(groups):
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            top, limit, used, prefix = mounted, "memory.max", "memory.current", ""
        elif "memory" in controllers.split(","):
            top = os.path.join(mounted, "memory")
            limit, used, prefix = "memory.limit_in_bytes", "memory.usage_in_bytes", "total_"
        else:
            continue
        # Inside a container the path may be one outside of it; the container's own group is then at the top.
        parts = [part for part in path.split("/") if part not in ("", "..")]
        for depth in range(len(parts), -1, -1):
            folder = os.path.join(top, *parts[:depth])
            limits, usages = _lines(os.path.join(folder, limit)), _lines(os.path.join(folder, used))
            if not limits or not usages or not limits[0].isdigit() or int(limits[0]) >= _UNLIMITED:
                continue
            kinds = dict(line.split() for line in _lines(os.path.join(folder, "memory.stat")))
            files = sum(int(kinds.get(f"{prefix}{kind}_file", 0)) for kind in ("active", "inactive"))
            yield int(limits[0]) - int(usages[0]) + files


def remote_file_system(path: str) -> str | None:
    """Return the type of a path's file system if its data come from another machine or a program, else None."""
    if not sys.platform.startswith("linux"):
        return None
    path, best = os.path.realpath(path), ("", "")
    for line in _lines("/proc/self/mounts"):
        _, folder, kind = line.split(" ")[:3]
        # Blanks are \040; all other bytes are the name's own.
        folder = os.fsdecode(_ESCAPED.sub(lambda m: bytes([int(m[1], 8)]), os.fsencode(folder)))
        inside = path == folder or path.startswith(folder.rstrip("/") + "/")
        if inside and len(folder) >= len(best[0]):  # of two at one place the later one covers the other
            best = folder, kind
    return best[1] if _REMOTE.fullmatch(best[1]) else None


def _lines(path: str) -> list[str]:
    """Return the lines of a file, none if it cannot be read, decoded like paths (os.fsdecode)."""
    try:
        with open(path, "rb") as file:
            # Not splitlines(), which ends lines at characters that names may have.
            return [os.fsdecode(line) for line in file.read().split(b"\n") if line]
    except OSError:
        return []
