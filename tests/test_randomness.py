"""packer.randomness: golden bits, ranges, permutations, and whether chance looks like chance."""

from __future__ import annotations

import math
import re
import shutil
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packer import native, randomness
from packer.errors import UsageError
from packer.randomness import integers, key, mix64, permute, uniform, unpermute

LAST = 2**62 - 1
COUNTERS = np.array([0, 1, -1, 2**62])
compiled = pytest.mark.skipif(not native.COMPILED, reason="packer was installed without a compiler")
Permute = Callable[[np.ndarray, int, int], np.ndarray]


def in_numpy(of: Permute) -> Permute:
    """Return a function as it is where there was no compiler."""

    def run(positions: np.ndarray, n: int, a_key: int) -> np.ndarray:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(native, "COMPILED", False)
            return of(positions, n, a_key)

    return run


FORMS = [pytest.param(in_numpy(permute), id="numpy"), pytest.param(permute, id="used")]
BACK = [pytest.param(in_numpy(unpermute), id="numpy"), pytest.param(unpermute, id="used")]
SIZES = st.integers(1, 600) | st.integers(1, 2**62) | st.integers(0, 61).map(lambda bits: 2**bits + 1)


def chi_square(counts: np.ndarray, expected: float) -> float:
    """Return how many standard deviations the statistic of these counts lies above its mean."""
    freedom = counts.size - 1
    return float((((counts - expected) ** 2 / expected).sum() - freedom) / math.sqrt(2 * freedom))


# --- frozen bits -------------------------------------------------------------------------------------------


def test_mix64_gives_the_published_splitmix64_sequence() -> None:
    # The first five numbers of splitmix64.c from seed 1234567.
    states = [(1234567 + 0x9E3779B97F4A7C15 * step) % 2**64 for step in range(1, 6)]
    assert mix64(np.array(states, dtype=np.uint64)).tolist() == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


@pytest.mark.parametrize(
    ("parts", "golden"),
    [
        ((), 13020603013274838756),
        ((0,), 10008648514914037998),
        ((0, 0), 2555351641654466953),
        (("",), 12657916123788542280),
        (("augment",), 7199292245227810665),
        ((1, 2, "slices"), 13768784420363262947),
        ((-1,), 14425123802012784042),
        ((2**200,), 9835496409030030263),
        (("é",), 6149625717468761735),
    ],
)
def test_key_is_frozen(parts: tuple[int | str, ...], golden: int) -> None:
    assert key(*parts) == golden


@pytest.mark.parametrize(
    ("n", "golden", "back"),
    [
        (10, [4, 1, 6, 2, 8, 3, 9, 0], [7, 1, 3, 5, 0, 9, 2, 8]),
        (257, [47, 183, 1, 95, 246, 58, 255, 230], [109, 2, 245, 32, 123, 12, 197, 63]),
        (
            6000,
            [2096, 1919, 697, 611, 2151, 5252, 1696, 3832],
            [2981, 1190, 4024, 2473, 357, 2820, 5587, 1237],
        ),
        (10**9, [386205410, 274358403, 880162812, 910613575], [259766399, 921143563, 400926332, 169335246]),
        (
            2**62,
            [434109585405146999, 4092524402999675328, 1979907132699256611, 988598552635008200],
            [881567091651015856, 743900494821471082, 24782418106799637, 1361124454240399890],
        ),
    ],
)
@pytest.mark.parametrize("form", [lambda one: one, in_numpy], ids=["used", "numpy"])
def test_permutations_are_frozen(
    form: Callable[[Permute], Permute], n: int, golden: list[int], back: list[int]
) -> None:
    assert form(permute)(np.arange(len(golden)), n, 42).tolist() == golden
    assert form(unpermute)(np.arange(len(back)), n, 42).tolist() == back


def test_uniform_and_integers_are_frozen() -> None:
    assert uniform(COUNTERS, 42).tolist() == [
        0.7415648787718233,
        0.1599103928769201,
        0.6537157389870545,
        0.9965924650749124,
    ]
    assert integers(COUNTERS, 42, 1000).tolist() == [741, 159, 653, 996]
    assert integers(np.arange(4), 42, 2**32).tolist() == [3184996902, 686809907, 1196582743, 1478287871]


# --- keys --------------------------------------------------------------------------------------------------


@given(st.lists(st.lists(st.integers() | st.text(), max_size=4), max_size=8))
def test_different_parts_give_different_keys(lists: list[list[int | str]]) -> None:
    distinct = {tuple((type(part), part) for part in parts) for parts in lists}
    assert len({key(*(part for _, part in parts)) for parts in distinct}) == len(distinct)


def test_key_takes_numpy_integers_by_value() -> None:
    assert key(np.int64(7), np.uint8(3)) == key(7, 3)


def test_key_refuses_a_float() -> None:
    with pytest.raises(UsageError) as error:
        key(0, 0.5)  # type: ignore[arg-type]
    assert str(error.value) == (
        "random key: 0.5 is a float; int and str are allowed. Pass a whole number as the seed."
    )


# --- permutations ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("permute", FORMS)
@given(n=st.integers(1, 3000), a_key=st.integers(0, 2**64 - 1))
def test_permute_is_a_permutation(permute: Permute, n: int, a_key: int) -> None:
    assert sorted(permute(np.arange(n), n, a_key).tolist()) == list(range(n))


@pytest.mark.parametrize("permute", FORMS)
@given(n=st.integers(257, 2**62), a_key=st.integers(0, 2**64 - 1), data=st.data())
def test_one_position_alone_gives_what_many_give(
    permute: Permute, n: int, a_key: int, data: st.DataObject
) -> None:
    positions = np.array(data.draw(st.lists(st.integers(0, n - 1), min_size=7, max_size=12)))
    numbers = permute(positions, n, a_key)
    assert ((numbers >= 0) & (numbers < n)).all()
    alone = [permute(positions[i : i + 1], n, a_key)[0] for i in range(len(positions))]
    assert numbers.tolist() == alone


@pytest.mark.parametrize("n", [257, 2**20 + 1, 10**9, 2**62])
def test_permute_sends_no_two_positions_to_one_number(n: int) -> None:
    positions = np.unique(np.linspace(0, n - 1, 20_000).astype(np.int64).clip(0, n - 1))
    assert len(np.unique(permute(positions, n, 5))) == len(positions)


@pytest.mark.parametrize("permute", FORMS)
@pytest.mark.parametrize("n", [3, 300])
def test_permute_keeps_the_shape_and_the_input(permute: Permute, n: int) -> None:
    positions = np.array([[2, 0, 1], [1, 1, 0]])
    numbers = permute(positions, n, 5)
    assert numbers.shape == (2, 3)
    assert numbers.dtype == np.int64
    assert numbers[0, 2] == numbers[1, 0] == numbers[1, 1]
    assert positions.tolist() == [[2, 0, 1], [1, 1, 0]]
    assert permute(np.empty(0, np.int64), n, 5).tolist() == []


@pytest.mark.parametrize("n", [3, 4, 5])
def test_all_permutations_of_a_few_are_equally_likely(n: int) -> None:
    keys = 100 * math.factorial(n)
    seen = Counter(tuple(permute(np.arange(n), n, key("test", k)).tolist()) for k in range(keys))
    assert len(seen) == math.factorial(n)
    assert abs(chi_square(np.array(list(seen.values())), 100)) < 4


# Just above the sorted sizes, where the network's halves are smallest, and where it has most to walk.
@pytest.mark.parametrize("n", [257, 290])
def test_every_number_and_every_distance_is_equally_likely_everywhere(n: int) -> None:
    keys = 20_000
    positions = np.array([0, 1, 16, 17, 34, 100, n - 1])
    numbers = np.array([permute(positions, n, key("test", k)) for k in range(keys)])
    for column in range(len(positions)):
        assert abs(chi_square(np.bincount(numbers[:, column], minlength=n), keys / n)) < 4.5
        if column:
            distances = np.bincount((numbers[:, column] - numbers[:, 0]) % n, minlength=n)[1:]
            assert abs(chi_square(distances, keys / (n - 1))) < 4.5


@pytest.mark.parametrize("n", [257, 5000, 65_536, 100_003])
def test_neighbours_are_not_related(n: int) -> None:
    numbers = permute(np.arange(n), n, 11)
    for apart in (1, 2, math.isqrt(n - 1) + 1):
        assert abs(np.corrcoef(numbers[:-apart], numbers[apart:])[0, 1]) < 4 / math.sqrt(n)
    # A random permutation has about one fixed point and about one pair of neighbours that stay neighbours.
    assert (numbers == np.arange(n)).sum() < 8
    assert (np.diff(numbers) == 1).sum() < 8


@pytest.mark.parametrize("n", [0, 2**62 + 1])
def test_permute_refuses_an_n_out_of_range(n: int) -> None:
    with pytest.raises(UsageError) as error:
        permute(np.arange(1), n, 0)
    assert str(error.value) == (
        f"permutation: it has {n:,} rows; 1 to 2**62 are allowed. Split the rows over several packs."
    )


@pytest.mark.parametrize("permute", [*FORMS, *BACK])
@pytest.mark.parametrize(("n", "wrong"), [(3, 3), (3, -1), (1000, 1000), (1000, -5)])
def test_a_position_out_of_range_is_refused(permute: Permute, n: int, wrong: int) -> None:
    with pytest.raises(UsageError) as error:
        permute(np.array([0, wrong]), n, 0)
    assert str(error.value) == (
        f"permutation: position {wrong:,} was requested; 0 to {n - 1:,} are allowed. "
        "Pass positions below the number of rows."
    )


# --- and back ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("unpermute", BACK)
@given(
    n=SIZES,
    a_key=st.integers(0, 2**64 - 1),
    count=st.sampled_from([0, 1, 7, 65, 300]),
    seed=st.integers(0, 99),
)
def test_unpermute_leads_back(unpermute: Permute, n: int, a_key: int, count: int, seed: int) -> None:
    positions = np.random.default_rng(seed).integers(0, n, count)
    positions[: count // 2] = n - 1 - np.arange(count // 2) % n
    assert (unpermute(permute(positions, n, a_key), n, a_key) == positions).all()
    assert (permute(unpermute(positions, n, a_key), n, a_key) == positions).all()


@pytest.mark.parametrize("unpermute", BACK)
def test_unpermute_inverts_every_small_permutation(unpermute: Permute) -> None:
    for n in (*range(1, 40), *range(250, 330)):
        assert (unpermute(permute(np.arange(n), n, key(n)), n, key(n)) == np.arange(n)).all()


# --- the compiled form -------------------------------------------------------------------------------------


@given(
    n=SIZES,
    a_key=st.integers(0, 2**64 - 1),
    count=st.sampled_from([0, 1, 63, 64, 65, 1000]),
    seed=st.integers(0, 99),
)
def test_both_forms_give_the_same_numbers(n: int, a_key: int, count: int, seed: int) -> None:
    positions = np.random.default_rng(seed).integers(0, n, count)
    positions[: count // 2] = (
        n - 1 - np.arange(count // 2) % n
    )  # the last ones go through the network most often
    assert (permute(positions, n, a_key) == in_numpy(permute)(positions, n, a_key)).all()


def test_both_forms_agree_on_every_small_permutation() -> None:
    for n in range(1, 700):
        for a_key in (0, 2**64 - 1, key(n)):
            assert (permute(np.arange(n), n, a_key) == in_numpy(permute)(np.arange(n), n, a_key)).all()


@pytest.mark.parametrize("n", [(2**31 - 1) ** 2, (2**31 - 1) ** 2 + 1, 2**31 * (2**31 - 1), LAST, 2**62])
def test_quotients_are_exact_where_doubles_are_not(n: int) -> None:
    """Positions beside the multiples of b, where a rounded quotient falls on the wrong side."""
    b = -(-n // (math.isqrt(n - 1) + 1))
    multiples = np.unique(np.random.default_rng(0).integers(n // b - 3000, n // b, 2000)) * b
    numbers = (multiples + np.arange(-1, 2)[:, None]).clip(0, n - 1)
    for one, back in ((permute, unpermute), (unpermute, permute)):
        found = one(numbers, n, 7)
        assert (found == in_numpy(one)(numbers, n, 7)).all()
        assert (back(found, n, 7) == numbers).all()


def test_strides_bytes_and_places_in_memory_do_not_matter() -> None:
    plain = np.arange(0, 3000, 3)
    expected = permute(plain, 5000, 1).tolist()
    shifted = np.frombuffer(b"x" + plain.tobytes(), np.int64, offset=1)
    assert not shifted.flags.aligned
    for same in (np.arange(3000)[::3], plain.astype(">i8"), plain.astype(np.uint16), shifted):
        assert permute(same, 5000, 1).tolist() == expected
    assert permute(np.array(7), 5000, 1).shape == ()
    assert permute(plain, np.int64(5000), 1).tolist() == expected  # type: ignore[arg-type]


@compiled
@pytest.mark.parametrize(
    "arguments",
    [
        (),
        (np.arange(3), np.empty(2, np.int64), 5, 3, 2, 0, bytes(48)),
        (np.arange(3, dtype=np.int32), np.empty(3, np.int32), 5, 3, 2, 0, bytes(48)),
        (np.arange(3), np.empty(3, np.int64), 5, 3, 2, 0, bytes(47)),
        (np.arange(3), np.empty(3, np.int64), 0, 3, 2, 0, bytes(48)),
        (np.arange(3), np.empty(3, np.int64), 2**63, 3, 2, 0, bytes(48)),
        (np.arange(3), np.empty(3, np.int64), -1, 3, 2, 0, bytes(48)),
        (np.arange(3), b"abcdefgh" * 3, 5, 3, 2, 0, bytes(48)),
        (np.arange(6)[::2], np.empty(3, np.int64), 5, 3, 2, 0, bytes(48)),
        ("abc", np.empty(3, np.int64), 5, 3, 2, 0, bytes(48)),
        (np.arange(3), np.empty(3, np.int64), 5, 3, 2, 0, "x"),
    ],
)
def test_nonsense_is_refused(arguments: tuple[object, ...]) -> None:
    with pytest.raises((TypeError, ValueError, OverflowError, BufferError)):
        native.loops.permute(*arguments)  # type: ignore[arg-type]
    with pytest.raises((TypeError, ValueError, OverflowError, BufferError)):
        native.loops.unpermute(*arguments)  # type: ignore[arg-type]


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no compiler")
@pytest.mark.parametrize(
    ("version", "clones"), [(8, []), (9, ["avx2"]), (11, ["avx2"]), (12, ["arch=x86-64-v4", "avx2"])]
)
def test_compilers_are_asked_for_what_they_know(version: int, clones: list[str]) -> None:
    """GCC 11 ends with an error at the name of AVX-512's clone, and packer would be without the compiled form."""
    source = (Path(native.__file__).parent / "native.h").read_text()
    choice = (
        source[source.index("#if defined(__x86_64__)") : source.index("/* ---- memory")] + "CLONES_AVX512\n"
    )
    names = {"__x86_64__": 1, "__GLIBC__": 2, "__GNUC__": version}
    done = subprocess.run(
        [
            "cc",
            "-E",
            "-P",
            "-DNOINLINE=",
            "-U__clang__",
            *(f"-U{n}" for n in names),
            *(f"-D{n}={v}" for n, v in names.items()),
            "-",
        ],
        input=choice,
        capture_output=True,
        text=True,
        check=True,
    )
    assert re.findall('"(.*?)"', done.stdout) == [*clones, "default"][: 9 * bool(clones)]


def test_threads_do_not_disturb_each_other() -> None:
    positions = np.arange(100_000)
    expected = {k: permute(positions, 10**9, k) for k in range(4)}
    wrong = []

    def work(k: int) -> None:
        for _ in range(20):
            if not (permute(positions, 10**9, k) == expected[k]).all():
                wrong.append(k)

    threads = [threading.Thread(target=work, args=(k,)) for k in expected]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_without_the_compiled_form_numpy_does_it() -> None:
    code = """
        import sys
        sys.modules["packer.native._native"] = None
        import numpy as np
        from packer import native, randomness
        assert not native.COMPILED
        print(randomness.permute(np.arange(3), 6000, 42).tolist())
    """
    run = subprocess.run(
        [sys.executable, "-c", "\n".join(line.strip() for line in code.splitlines())],
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout == "[2096, 1919, 697]\n"


# --- draws -------------------------------------------------------------------------------------------------


def test_uniform_is_uniform_and_never_one() -> None:
    fractions = uniform(np.arange(100_000), 1)
    assert fractions.dtype == np.float64
    assert fractions.min() >= 0
    assert fractions.max() < 1
    assert abs(chi_square(np.histogram(fractions, 1000, (0, 1))[0], 100)) < 4
    assert (fractions * 2**53 % 1 == 0).all()
    assert abs(np.corrcoef(fractions[:-1], fractions[1:])[0, 1]) < 4 / math.sqrt(100_000)


def test_a_hash_of_all_ones_stays_below_the_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(randomness, "mix64", lambda x: np.full(x.shape, 2**64 - 1, dtype=np.uint64))
    assert uniform(np.arange(1), 0)[0] == 1 - 2**-53
    assert integers(np.arange(3), 0, np.array([1, 7, 2**32])).tolist() == [0, 6, 2**32 - 1]


@given(st.integers(1, 2**32), st.integers(0, 2**64 - 1), st.lists(st.integers(-(2**63), 2**63 - 1)))
def test_integers_are_the_hash_times_the_bound(high: int, a_key: int, counters: list[int]) -> None:
    array = np.array(counters, dtype=np.int64)
    hashes = randomness._hashes(array, a_key).tolist()
    assert integers(array, a_key, high).tolist() == [h * high >> 64 for h in hashes]


def test_integers_are_uniform() -> None:
    assert abs(chi_square(np.bincount(integers(np.arange(70_000), 3, 7)), 10_000)) < 4


def test_integers_take_a_bound_each() -> None:
    numbers = integers(np.zeros(1, np.int64), 3, np.array([1, 10, 10, 1000]))
    assert numbers.tolist() == [integers(np.zeros(1, np.int64), 3, high)[0] for high in (1, 10, 10, 1000)]


def test_draws_depend_on_counter_and_key_alone() -> None:
    counters = np.arange(100)
    assert uniform(counters[::-1], 9).tolist() == uniform(counters, 9)[::-1].tolist()
    assert uniform(counters[30:40], 9).tolist() == uniform(counters, 9)[30:40].tolist()
    assert not np.intersect1d(uniform(counters, 9), uniform(counters, 10)).size
    related = np.corrcoef(uniform(np.arange(50_000), key(0, 1)), uniform(np.arange(50_000), key(0, 2)))
    assert abs(related[0, 1]) < 4 / math.sqrt(50_000)


@pytest.mark.parametrize("high", [0, -1, 2**32 + 1])
def test_integers_refuse_a_bound_out_of_range(high: int) -> None:
    with pytest.raises(UsageError) as error:
        integers(np.arange(2), 0, np.array([5, high]))
    assert str(error.value) == (
        f"random integers: the bound is {high:,}; 1 to 2**32 are allowed. Draw from a smaller range."
    )
