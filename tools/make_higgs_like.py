"""Write a table like UCI's HIGGS data set, of any size: a simulated search for an exotic Higgs boson.

    python tools/make_higgs_like.py higgs.csv --rows 1000000
    python tools/make_higgs_like.py HIGGS.csv.gz --rows 11000000 --npy higgs.npy

No header; 29 columns: the class (1 signal, 0 background), 21 low-level features, 7 high-level features, in
UCI's
notation (float32, "%.18e"). Signal: gg -> H0 (425 GeV) -> W H+- (325) -> W W h (125) -> W W b b. Background:
top pairs
-> W b W b, the same particles. In each event one W decays to a lepton and a neutrino, the other to two jets.
Masses,
momenta and angles are random, decays are boosted to the laboratory frame, another jet may come from the beam,
and a
detector smears, loses and tags the rest. The high-level features are masses of W, top and Higgs candidates,
computed
from the detected particles. Features are divided by their mean, angles by their deviation.

Rows come in blocks of 50,000, each drawn from (seed, block): the first rows do not depend on --rows and
--workers. A name in .gz gives a single gzip member, compressed by all workers.

Source of the layout: P. Baldi, P. Sadowski, D. Whiteson, "Searching for exotic particles in high-energy
physics with deep learning", Nature Communications 5 (2014). The neutrinos' momenta follow the usual W-mass
constraint.
"""

from __future__ import annotations

import argparse
import os
import struct
import sys
import zlib
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

Array: TypeAlias = NDArray[np.float64]
Vectors: TypeAlias = NDArray[np.float64]  # [4, N]: energy and momentum (E, x, y, z) in GeV

BLOCK = 50_000  # rows drawn from one seed
SIGNAL_SHARE = 0.53  # as in UCI's
GZIP_LEVEL = 6

W, TOP, BOTTOM = (80.4, 2.1), (172.5, 1.4), 4.7  # mass and width, GeV
H0, CHARGED, LIGHT = (425.0, 6.0), (325.0, 5.0), (125.0, 0.004)
MIN_PT, MAX_ETA = 20.0, 2.5  # acceptance of jets and leptons
# Probabilities of no b-tag and of a loose b-tag; the others are tight.
TAGS = {"b": (0.27, 0.20), "c": (0.70, 0.18), "light": (0.88, 0.10)}

LOW_LEVEL = (
    "lepton pT", "lepton eta", "lepton phi", "missing energy magnitude", "missing energy phi",
    *(f"jet {k} {what}" for k in (1, 2, 3, 4) for what in ("pt", "eta", "phi", "b-tag")),
)  # fmt: skip
HIGH_LEVEL = ("m_jj", "m_jjj", "m_lv", "m_jlv", "m_bb", "m_wbb", "m_wwbb")
# Divisors of the features.
SCALES = (
    57.92, 1.017, 1.813, 49.03, 1.812, 104.2, 0.9563, 1.815, 1.184, 71.89, 1.015, 1.812, 0.9048, 50.29, 1.081, 1.814, 0.8222,
    35.19, 1.139, 1.813, 0.6402, 103.6, 196.4, 83.13, 179.6, 133.1, 315.1, 470.7,
)  # fmt: skip


class Event(NamedTuple):
    """True particles of N collisions; quarks in any order."""

    lepton: Vectors
    neutrino: Vectors
    quarks: list[tuple[str, Vectors]]  # kind, one of TAGS, or "up": half of these are charm


def resonance(particle: tuple[float, float], n: int, draws: np.random.Generator) -> Array:
    """Return masses [N] of an unstable particle (mass, width): Breit-Wigner, cut at ten widths."""
    mass, width = particle
    reach = np.arctan(20.0)
    return mass + width / 2 * np.tan(draws.uniform(-reach, reach, n))


def moving(mass: Array, pt: Array, rapidity: Array, phi: Array) -> Vectors:
    """Return four-vectors [4, N] from masses, transverse momenta, rapidities and directions."""
    across = np.sqrt(mass**2 + pt**2)
    return np.stack(
        [across * np.cosh(rapidity), pt * np.cos(phi), pt * np.sin(phi), across * np.sinh(rapidity)]
    )


def decay(
    parent: Vectors, mass: Array, first: Array | float, second: Array | float, draws: np.random.Generator
) -> tuple[Vectors, Vectors]:
    """Return two particles of masses `first` and `second` in the laboratory frame.

    Their direction is random in the parent's rest frame.
    """
    n = len(mass)
    momentum = (
        np.sqrt(np.maximum((mass**2 - (first + second) ** 2) * (mass**2 - (first - second) ** 2), 0.0))
        / mass
        / 2
    )
    z, phi = draws.uniform(-1, 1, n), draws.uniform(-np.pi, np.pi, n)
    across = momentum * np.sqrt(1 - z**2)
    rest = np.stack([across * np.cos(phi), across * np.sin(phi), momentum * z])
    energy = np.sqrt(momentum**2 + np.square(first))
    along = (parent[1:] * rest).sum(axis=0)
    boosted = rest + parent[1:] * (along / (parent[0] + mass) + energy) / mass
    one = np.stack([(parent[0] * energy + along) / mass, *boosted])
    return one, parent - one


def boson_decays(
    bosons: list[tuple[Vectors, Array]], draws: np.random.Generator
) -> tuple[Vectors, Vectors, list[tuple[str, Vectors]]]:
    """Decay two W bosons (vectors, masses): a random one to lepton and neutrino, the other to two quarks."""
    (a, mass_a), (b, mass_b) = bosons
    swap = draws.random(len(mass_a)) < 0.5
    leptonic, hadronic = np.where(swap, b, a), np.where(swap, a, b)
    lepton, neutrino = decay(leptonic, np.where(swap, mass_b, mass_a), 0.0, 0.0, draws)
    up, down = decay(hadronic, np.where(swap, mass_a, mass_b), 0.0, 0.0, draws)
    return lepton, neutrino, [("up", up), ("light", down)]


def produced(mass: Array, draws: np.random.Generator) -> tuple[Vectors, tuple[str, Vectors]]:
    """Return the product of two protons, of these masses, and the jet that it recoils from."""
    n = len(mass)
    pt, phi = draws.gamma(1.3, 22.0, n), draws.uniform(-np.pi, np.pi, n)
    system = moving(mass, pt, draws.normal(0, 0.9, n), phi)
    return system, ("light", moving(np.zeros(n), pt, draws.normal(0, 1.8, n), phi + np.pi))


def signal(n: int, draws: np.random.Generator) -> Event:
    """Return collisions with gg -> H0 -> W H+- -> W W h -> W W b b."""
    masses = {name: resonance(of, n, draws) for name, of in (("H0", H0), ("H+", CHARGED), ("h", LIGHT))}
    w_masses = [resonance(W, n, draws) for _ in range(2)]
    masses["H+"] = np.minimum(masses["H+"], masses["H0"] - w_masses[0])  # in the tails: at rest, not heavier
    higgs, beam = produced(masses["H0"], draws)
    first, charged = decay(higgs, masses["H0"], w_masses[0], masses["H+"], draws)
    second, light = decay(charged, masses["H+"], w_masses[1], masses["h"], draws)
    bottoms = decay(light, masses["h"], BOTTOM, BOTTOM, draws)
    lepton, neutrino, quarks = boson_decays(list(zip((first, second), w_masses, strict=True)), draws)
    return Event(lepton, neutrino, [("b", bottoms[0]), ("b", bottoms[1]), *quarks, beam])


def background(n: int, draws: np.random.Generator) -> Event:
    """Return collisions that produce a pair of top quarks."""
    tops = [resonance(TOP, n, draws) for _ in range(2)]
    w_masses = [resonance(W, n, draws) for _ in range(2)]
    pair, beam = produced(tops[0] + tops[1] + draws.gamma(1.6, 65.0, n), draws)
    mass = np.sqrt(np.maximum(pair[0] ** 2 - (pair[1:] ** 2).sum(axis=0), 0.0))
    bosons, bottoms = [], []
    for top, of, w_mass in zip(decay(pair, mass, tops[0], tops[1], draws), tops, w_masses, strict=True):
        boson, bottom = decay(top, of, w_mass, BOTTOM, draws)
        bosons.append((boson, w_mass))
        bottoms.append(("b", bottom))
    lepton, neutrino, quarks = boson_decays(bosons, draws)
    return Event(lepton, neutrino, [*bottoms, *quarks, beam])


def coordinates(vectors: Vectors) -> tuple[Array, Array, Array]:
    """Return transverse momentum, pseudorapidity and azimuth."""
    _, x, y, z = vectors
    pt = np.hypot(x, y)
    return pt, np.arcsinh(z / np.maximum(pt, 1e-6)), np.arctan2(y, x)


def smeared(vectors: Vectors, share: Array, draws: np.random.Generator, angle: float) -> Vectors:
    """Return massless measured particles: energies off by these shares, directions by `angle`."""
    pt, eta, phi = coordinates(vectors)
    n = len(pt)
    pt = pt * np.maximum(1 + share * draws.normal(0, 1, n), 0.05)
    eta, phi = eta + draws.normal(0, angle, n), phi + draws.normal(0, angle, n)
    return np.stack([pt * np.cosh(eta), pt * np.cos(phi), pt * np.sin(phi), pt * np.sinh(eta)])


def mass_of(*vectors: Vectors) -> Array:
    """Return the invariant mass of several particles together."""
    energy, *momentum = np.sum(vectors, axis=0)
    squared: Array = energy**2 - np.square(momentum).sum(axis=0)
    return np.sqrt(np.maximum(squared, 0.0))


def neutrino_of(lepton: Vectors, missing_x: Array, missing_y: Array) -> Vectors:
    """Return the neutrino that forms a W with the lepton: the slower solution, or complex ones' real part."""
    energy, x, y, z = lepton
    squared, missing = x**2 + y**2, np.hypot(missing_x, missing_y)
    half = W[0] ** 2 / 2 + x * missing_x + y * missing_y
    root = energy * np.sqrt(np.maximum(half**2 - squared * missing**2, 0.0))
    low, high = (half * z - root) / squared, (half * z + root) / squared
    along = np.where(np.abs(low) < np.abs(high), low, high)
    return np.stack([np.hypot(missing, along), missing_x, missing_y, along])


def measured(event: Event, draws: np.random.Generator) -> Array:
    """Return the detected features, [n, 28] in GeV and radians, of the accepted collisions (n <= N)."""
    n = event.lepton.shape[1]
    lepton = smeared(event.lepton, np.full(n, 0.02), draws, 0.001)
    jets, tags = [], []
    for kind, quark in event.quarks:
        jets.append(smeared(quark, np.sqrt(0.6**2 / np.maximum(quark[0], 1.0) + 0.04**2), draws, 0.03))
        charm = draws.random(n) < (0.5 if kind == "up" else 0.0)
        none, loose = (
            np.where(charm, *both) for both in zip(TAGS["c"], TAGS.get(kind, TAGS["light"]), strict=True)
        )
        lot = draws.random(n)
        tags.append(np.add(lot > none, lot > none + loose, dtype=np.float64))
    x, y = -np.sum([lepton, *jets], axis=0)[1:3] + draws.normal(0, 8.0, (2, n))

    jet, tag = np.stack(jets), np.stack(tags)  # [5, 4, N], [5, N]
    pt, eta = np.hypot(jet[:, 1], jet[:, 2]), np.arcsinh(jet[:, 3] / np.hypot(jet[:, 1], jet[:, 2]))
    taken = (pt > MIN_PT) & (np.abs(eta) < MAX_ETA)
    lepton_pt, lepton_eta, _ = coordinates(lepton)
    kept = np.flatnonzero(
        (lepton_pt > MIN_PT)
        & (np.abs(lepton_eta) < MAX_ETA)
        & (taken.sum(axis=0) >= 4)
        & ((taken & (tag > 0)).sum(axis=0) >= 2)
    )
    order = np.argsort(np.where(taken, -pt, 0.0)[:, kept], axis=0)[:4]  # the four strongest
    jet, tag = jet[order, :, kept].transpose(0, 2, 1), tag[order, kept]
    lepton, x, y = lepton[:, kept], x[kept], y[kept]

    columns = [*coordinates(lepton), np.hypot(x, y), np.arctan2(y, x)]
    for k in range(4):
        columns += [*coordinates(jet[k]), tag[k]]
    neutrino = neutrino_of(lepton, x, y)
    return np.stack([*columns, *candidates(lepton, neutrino, jet, tag)], axis=1)


def candidates(lepton: Vectors, neutrino: Vectors, jet: Array, tag: Array) -> list[Array]:
    """Return the high-level features. jet: [4, 4, N], strongest first; tag: [4, N]."""
    best = np.argsort(-tag, axis=0, kind="stable")
    every = np.arange(tag.shape[1])
    b1, b2, j1, j2 = (jet[best[k], :, every].T for k in range(4))
    # Assign a bottom to each W as if they were tops: the choice with masses nearer to two tops.
    ways = [(mass_of(j1, j2, mine), mass_of(lepton, neutrino, other)) for mine, other in ((b1, b2), (b2, b1))]
    far = [np.abs(jjj - TOP[0]) + np.abs(jlv - TOP[0]) for jjj, jlv in ways]
    jjj, jlv = (np.where(far[0] < far[1], first, second) for first, second in zip(*ways, strict=True))
    with_jets, with_lepton = mass_of(j1, j2, b1, b2), mass_of(lepton, neutrino, b1, b2)
    nearer = np.abs(with_jets - CHARGED[0]) < np.abs(with_lepton - CHARGED[0])
    return [
        mass_of(j1, j2),
        jjj,
        mass_of(lepton, neutrino),
        jlv,
        mass_of(b1, b2),
        np.where(nearer, with_jets, with_lepton),
        mass_of(j1, j2, lepton, neutrino, b1, b2),
    ]


def block(seed: int, number: int) -> NDArray[np.float32]:
    """Return a block of the table, float32 [BLOCK, 29], class first."""
    draws = np.random.default_rng([seed, number])
    label = draws.random(BLOCK) < SIGNAL_SHARE
    table = np.empty((BLOCK, 1 + len(SCALES)), np.float32)
    table[:, 0] = label
    for is_signal, collide in ((True, signal), (False, background)):
        rows = np.flatnonzero(label == is_signal)
        done = 0
        while done < len(rows):
            n = 3 * (len(rows) - done) + 100
            found = measured(collide(n, draws), draws)[: len(rows) - done]
            table[rows[done : done + len(found)], 1:] = found / SCALES
            done += len(found)
    return table


def as_text(table: NDArray[np.float32], number_format: str) -> bytes:
    """Return lines of CSV."""
    line = ",".join([number_format] * table.shape[1]) + "\n"
    return b"".join(
        (line * len(some) % tuple(some.ravel().tolist())).encode()
        for some in np.split(table, range(500, len(table), 500))
    )


class Piece(NamedTuple):
    """A block in the file: its bytes, and CRC-32 and length of its text."""

    data: bytes
    crc: int
    length: int
    table: NDArray[np.float32] | None


def piece(seed: int, number: int, rows: int, number_format: str, packed: bool, with_table: bool) -> Piece:
    """Return the first `rows` rows of a block, as text or as a continuable part of a deflate stream."""
    table = block(seed, number)[:rows]
    text = data = as_text(table, number_format)
    if packed:
        deflate = zlib.compressobj(GZIP_LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
        data = deflate.compress(text) + deflate.flush(zlib.Z_SYNC_FLUSH)
    return Piece(data, zlib.crc32(text) if packed else 0, len(text), table if with_table else None)


def crc32_joined(first: int, second: int, length: int) -> int:
    """Return the CRC-32 of two concatenated texts from theirs. length: of the second text.

    Source: zlib, crc32_combine: applies `length` zero bytes to the first CRC as powers of a matrix over
    GF(2).
    """

    def times(matrix: list[int], vector: int) -> int:
        total = 0
        for row in matrix:
            if vector & 1:
                total ^= row
            vector >>= 1
        return total

    power = [0xEDB88320, *(1 << k for k in range(31))]  # one zero bit
    for _ in range(3):
        power = [times(power, row) for row in power]  # one zero byte, and then its powers
    while length:
        if length & 1:
            first = times(power, first)
        power = [times(power, row) for row in power]
        length >>= 1
    return first ^ second


def pieces(
    seed: int, rows: int, number_format: str, packed: bool, with_table: bool, workers: int
) -> Iterator[Piece]:
    """Yield all blocks in order, computed by processes a few blocks ahead."""
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        waiting: deque[Future[Piece]] = deque()
        for first in range(0, rows, BLOCK):
            count = min(BLOCK, rows - first)
            waiting.append(pool.submit(piece, seed, first // BLOCK, count, number_format, packed, with_table))
            if len(waiting) > workers + 2:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def write(
    out: BinaryIO,
    blocks: Iterator[Piece],
    *,
    packed: bool,
    array: NDArray[np.float32] | None,
    progress: tqdm[Any],
) -> None:
    """Write the blocks in order, as text or as a gzip member; also copy their rows into `array`, if given."""
    if packed:
        out.write(b"\x1f\x8b\x08" + bytes(6) + b"\xff")  # no name, no time: equal calls write equal bytes
    crc = length = done = 0
    for each in blocks:
        out.write(each.data)
        if packed:
            crc, length = crc32_joined(crc, each.crc, each.length), length + each.length
        if each.table is not None and array is not None:
            array[done : done + len(each.table)] = each.table
            done += len(each.table)
        progress.update(each.length)
    if packed:
        out.write(b"\x03\x00" + struct.pack("<II", crc, length & 0xFFFFFFFF))  # an empty last block


def main(argv: list[str] | None = None) -> None:
    """Write the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, help="file to write; its name may end in .gz")
    parser.add_argument("--rows", type=int, default=11_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--format", default="%.18e", help='of a number: "%%.18e" as UCI\'s, or "%%.7g"')
    parser.add_argument(
        "--workers",
        type=int,
        default=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
    )
    parser.add_argument(
        "--npy", type=Path, metavar="FILE", help="also write the rows here, as float32 [N, 29]"
    )
    given = parser.parse_args(argv)
    for name in ("rows", "workers"):
        if getattr(given, name) < 1:
            sys.exit(f"--{name} {getattr(given, name)}: is below 1. Pass a whole number from 1 on.")
    try:
        float(given.format % 1.5)
    except (ValueError, TypeError):
        sys.exit(f'--format {given.format!r}: formats no number. Pass one like "%.18e" or "%.7g".')
    packed, part = given.out.suffix == ".gz", given.out.with_name(f"{given.out.name}.part")
    array = None
    if given.npy:
        shape = (given.rows, 1 + len(SCALES))
        array = np.lib.format.open_memmap(given.npy, mode="w+", dtype=np.float32, shape=shape)
    try:
        with open(part, "wb") as out, tqdm(unit="B", unit_scale=True, desc=given.out.name) as progress:
            blocks = pieces(given.seed, given.rows, given.format, packed, array is not None, given.workers)
            write(out, blocks, packed=packed, array=array, progress=progress)
        part.replace(given.out)
    finally:
        part.unlink(missing_ok=True)
    print(f"{given.out}: {given.rows:,} rows, {given.out.stat().st_size / 1e6:,.0f} MB")


if __name__ == "__main__":
    main()
