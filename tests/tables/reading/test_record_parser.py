"""What parse.py promises, in C (where it was compiled) and in Python."""

from __future__ import annotations

import io
import math
import struct
from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packer import native
from packer.tables.reading.record_parser import TextDialect, end_of_records, parse_records, records_of
from packer.tables.transform.cell_values import NA_TEXTS
from packer.tables.transform.column_types import MISSING_INTEGER, TableColumn
from packer.tables.transform.records import BadRow, ParsedRows, RecordLayout, RecordMember

NA = frozenset(text.encode() for text in NA_TEXTS)
FORMS = [False, *([True] if native.COMPILED else [])]


@pytest.fixture(params=FORMS, ids=["plain", "C"][: len(FORMS)], autouse=True)
def compiled(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr(native, "COMPILED", request.param)
    return bool(request.param)


def form(width: int, **changed: object) -> TextDialect:
    marks = {"delimiter": b",", "quote": b'"', "decimal": b".", "thousands": b"", "na": NA, **changed}
    return TextDialect(width=width, **marks)  # type: ignore[arg-type]


def layout(types: str | Sequence[str], single: bool = False, exact: bool = False) -> RecordLayout:
    """Of types separated by spaces; "-" is not wanted."""
    names = types.split() if isinstance(types, str) else types
    return RecordLayout(
        tuple(
            RecordMember(i, TableColumn(str(i), type), single and type == "number", exact and not single)
            for i, type in enumerate(names)
            if type != "-"
        )
    )


def read(text: str | bytes, types: str, single: bool = False, **changed: object) -> ParsedRows:
    data = text.encode() if isinstance(text, str) else text
    parsed = parse_records(data, form(len(types.split()), **changed), layout(types, single))
    assert parsed.nbytes == len(data)
    assert parsed.records.dtype == layout(types, single).dtype
    return parsed


def column(parsed: ParsedRows, index: int = 0) -> list[object]:
    """Its values; categories and texts themselves, None where missing."""
    values = parsed.records[f"c{index}"]
    if values.dtype.names:
        return [
            parsed.texts[at : at + length].decode()
            for at, length in zip(values["at"], values["length"], strict=True)
        ]
    if index in parsed.dictionaries:
        return [parsed.dictionaries[index][code] if code >= 0 else None for code in values]
    return [None if isinstance(v, float) and math.isnan(v) else v for v in values.tolist()]


def numbers(cells: Sequence[str], single: bool = False, **changed: object) -> np.ndarray:
    """A second column keeps all of them off the ends of the data, and lines from being blank."""
    data = "".join(f"{cell};x\n" for cell in ["0" * 60, *cells, "0" * 60])
    parsed = read(data, "number -", single, delimiter=b";", **changed)
    assert not parsed.bad
    assert len(parsed.records) == len(cells) + 2
    return parsed.records["c0"][1:-1]


def same_bits(values: np.ndarray, wanted: Sequence[float]) -> None:
    size = values.dtype.itemsize
    with np.errstate(over="ignore"):
        expected = np.array(wanted, np.float64).astype(values.dtype)
    assert np.ascontiguousarray(values).view(f"<u{size}").tolist() == expected.view(f"<u{size}").tolist()


def check_numbers(cells: Sequence[str]) -> None:
    finite = [cell for cell in cells if math.isfinite(float(cell))]
    same_bits(numbers(finite), [float(cell) for cell in finite])


# ---- numbers ----

SPELLINGS = """\
0 -0 +0 0.0 -0.0 1 -1 +1 1. .5 -.5 +.5 5.e3 .5e-3 1e5 1E5 1e+05 1e-05 1e005 -1.5e+3 00012 0001.5000 12345678
123456789 1234567890123456 12345678901234567 1234567890123456789 12345678901234567890 9007199254740992 9007199254740993
9007199254740993.0 9007199254740995 18446744073709551615 18446744073709551616 9223372036854775807 99999999999999999999
1e22 1e23 8.5e22 123456789e22 1e-22 1e-23 3e-22 5e-324 4.9e-324 2.4703282292062327e-324 2.4703282292062328e-324 1e-400 0e999
2.2250738585072011e-308 2.2250738585072014e-308 2.225073858507201e-308 1.7976931348623157e308 1.7976931348623158e308
0.000000000000000000000000000001 0.1 0.2 0.3 0.30000000000000004 3.141592653589793238462643383279502884197169399375105820974944
8.692932128906250000e-01 -1.321048587560653687e-01 -0.13210486 0.00012345678901234567 1700000000.123 1234567890.0987654321
0.5000000000000000000000000000000000000000000000000000000000001 6.02214076e23 1e0 1e00 0.1e1 10e-1 4.35 123.456 0e0 0e-5
1090544144181609348671888949248 1.00000000000000011102230246251565404236316680908203125
1.00000000000000011102230246251565404236316680908203124 1.00000000000000011102230246251565404236316680908203126
7.2057594037927933e+16 9.5e-1 1e-9999999999999999999999 0.0e99999999999999999999999"""


def test_numbers_in_all_spellings() -> None:
    check_numbers(SPELLINGS.split())


def test_halfway_between_two_doubles() -> None:
    random = np.random.default_rng(0)
    cells = []
    for exponent in [*range(-1074, -1010, 4), -60, -5, 0, 3, 30, 52, 53, 60, 200, 970]:
        mantissa = int(random.integers(2**52, 2**53))
        half = Fraction(2 * mantissa + 1) * Fraction(2) ** (exponent - 1)
        digits = 1100
        whole = half * 10**digits
        assert whole.denominator == 1
        for add in (-1, 0, 1):
            text = str(whole.numerator + add).zfill(digits + 1)
            cells.append(f"{text[:-digits]}.{text[-digits:]}")
            cells.append(f"-{text}e-{digits}")
    check_numbers(cells)


def test_eight_hundred_digits() -> None:
    digits = "".join(str(d) for d in np.random.default_rng(1).integers(0, 10, 800))
    check_numbers(
        [f"{digits[:at]}.{digits[at:]}" for at in range(1, 300, 7)]
        + [f"0.{digits}e{at}" for at in range(-900, 309, 31)]
    )


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=60), st.integers(0, 25))
@settings(max_examples=60, deadline=None)
def test_random_doubles(values: list[float], digits: int) -> None:
    check_numbers(
        [repr(v) for v in values] + [f"{v:.{digits}e}" for v in values] + [f"{v:.17g}" for v in values]
    )


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["", "-", "+"]),
            st.integers(0, 10**24),
            st.integers(0, 24),
            st.integers(-330, 280),
        ),
        max_size=60,
    )
)
@settings(max_examples=60, deadline=None)
def test_random_digits(parts: list[tuple[str, int, int, int]]) -> None:
    cells = []
    for sign, digits, behind, power in parts:
        text = str(digits).zfill(behind + 1)
        cells.append(f"{sign}{text[: len(text) - behind]}.{text[len(text) - behind :]}")
        cells.append(f"{cells[-1]}e{power}")
        cells.append(f"{sign}{digits}")
    check_numbers(cells)


@given(st.lists(st.integers(0, 2**63 - 2**53), min_size=1, max_size=100))
@settings(max_examples=60, deadline=None)
def test_all_bit_patterns(bits: list[int]) -> None:
    values = [struct.unpack("<d", struct.pack("<Q", b))[0] for b in bits]
    check_numbers([repr(v) for v in values if math.isfinite(v)])


def test_single_precision_is_that_of_the_double() -> None:
    random = np.random.default_rng(2)
    cells = [
        f"{v:.{d}e}"
        for v, d in zip(
            random.standard_normal(3000) * 10.0 ** random.integers(-45, 38, 3000),
            random.integers(0, 20, 3000),
            strict=True,
        )
    ]
    cells += ["3.402823567797336e38", "1e-45", "7e-46", "1.1754943e-38", "16777217", "16777219"]
    same_bits(numbers(cells, single=True), [float(cell) for cell in cells])


def test_bit_equality_with_pandas() -> None:
    pandas = pytest.importorskip("pandas")
    random = np.random.default_rng(3)
    table = random.standard_normal((2000, 4)).astype("float32")
    table[::7, 1] = np.nan
    text = io.StringIO()
    np.savetxt(text, table[:, :2], fmt="%.18e", delimiter=",")
    for name, data in (
        ("savetxt", text.getvalue()),
        ("to_csv", pandas.DataFrame(table[:, 2:]).to_csv(index=False, header=False)),
    ):
        parsed = read(data, "number number", single=True)
        wanted = pandas.read_csv(io.StringIO(data), header=None, dtype="float32").to_numpy()
        got = parsed.records.view("<f4").reshape(-1, 2)
        assert len(got) == 2000, name
        assert np.array_equal(got, wanted, equal_nan=True), name


def test_what_is_no_number() -> None:
    cells = [
        "x",
        "1x",
        "1e",
        "1e+",
        "e5",
        ".",
        "-",
        "+",
        "--1",
        "1.2.3",
        "1,5",
        "1_000",
        "0x10",
        "1 2",
        "1-",
        "infin",
        "١",
        "1e5.0",
        "NAN",
        "1.e",
        "-.e1",
        "\x00",
        "1\x00",
    ]
    data = "".join(f"{cell};x\n" for cell in cells)
    parsed = read(data, "number -", delimiter=b";")
    assert parsed.bad == [BadRow(i, 0, cell, "is not a number") for i, cell in enumerate(cells)]
    assert len(parsed.records) == 0


@given(st.lists(st.text("0123456789.-+eE x", max_size=24), max_size=40), st.booleans())
@settings(max_examples=50, deadline=None)
def test_a_number_is_what_float_takes(cells: list[str], single: bool) -> None:
    data = "".join(f"{cell};x\n" for cell in cells)
    parsed = read(data, "number -", single, delimiter=b";")
    good, bad = [], []
    for line, cell in enumerate(cells):
        try:
            value = float(cell) if cell.strip() else math.nan
        except ValueError:
            bad.append(line)
            continue
        if math.isinf(value) or (single and abs(value) >= float.fromhex("0x1.ffffffp127")):
            bad.append(line)
        else:
            good.append(value)
    assert [one.line for one in parsed.bad] == bad
    same_bits(parsed.records["c0"], good)


def test_infinite_and_beyond() -> None:
    cells = [
        "inf",
        "-Infinity",
        "1e400",
        "-1e309",
        "1.7976931348623159e308",
        "1e39",
        "3.4028235677973366e38",
        "1e5",
    ]
    parsed = read("".join(f"{c}\n" for c in cells), "number", single=True)
    assert [(b.value, b.reason) for b in parsed.bad] == [
        *((cell, "is infinite") for cell in cells[:5]),
        *((cell, "is beyond float32") for cell in cells[5:7]),
    ]
    assert column(read("1e39,1\ninf,1\n", "number number")) == [1e39]


def test_spaces_and_missing_numbers() -> None:
    parsed = read(" 1,\t2 \n  ,NA\n-nan,1.#IND\n #N/A ,null\r\n7,8", "number integer")
    assert column(parsed) == [1.0, None, None, None, 7.0]
    assert column(parsed, 1) == [2, MISSING_INTEGER, MISSING_INTEGER, MISSING_INTEGER, 8]
    assert not parsed.bad


def test_missing_numbers_have_the_same_bits_always() -> None:
    data = ",".join(NA_TEXTS) + "\n"
    parsed = read(data, " ".join(["number"] * len(NA_TEXTS)))
    assert set(parsed.records.view("<u8").tolist()) == {0x7FF8000000000000}
    parsed = read(data, " ".join(["number"] * len(NA_TEXTS)), single=True)
    assert set(parsed.records.view("<u4").tolist()) == {0x7FC00000}


def test_numbers_that_mean_missing() -> None:
    na = NA | {b"-999", b"-1.00000000000000000000000000000000000"}
    cells = ["-999", "-9999", "-99", "-999.0", " -999", '"-999"', "-1.00000000000000000000000000000000000"]
    data = (
        "0,0\n" * 20
        + "".join(f"{cell},{cell}\n" for cell in cells[:3])
        + "".join(f"{cell},0\n" for cell in cells[3:])
        + "0,0\n" * 20
    )
    parsed = read(data, "number integer", na=na)
    assert column(parsed)[20:-20] == [None, -9999.0, -99.0, -999.0, None, None, None]
    assert column(parsed, 1)[20:23] == [MISSING_INTEGER, -9999, -99]


def test_without_empty_among_the_missing() -> None:
    parsed = read("1,\n,2\n", "number category", na=frozenset())
    assert parsed.bad == [BadRow(1, 0, "", "is not a number")]
    assert column(parsed, 1) == [""]


# ---- whole numbers ----


def test_integers() -> None:
    cells = [
        "0",
        "-0",
        "+5",
        "007",
        "9223372036854775807",
        "-9223372036854775807",
        "123456789012345678",
        " 4",
    ]
    assert column(read("".join(f"{c},\n" for c in cells), "integer -")) == [int(c) for c in cells]


@pytest.mark.parametrize(
    ("cell", "reason"),
    [
        ("12.0", "is not a whole number"),
        ("12.", "is not a whole number"),
        ("1e3", "is not a whole number"),
        ("abc", "is not a whole number"),
        ("inf", "is not a whole number"),
        (".5", "is not a whole number"),
        ("9223372036854775808", "is beyond 64-bit integers"),
        ("-9223372036854775808", "is beyond 64-bit integers"),
        ("18446744073709551617", "is beyond 64-bit integers"),
        ("100000000000000000000000000000000000", "is beyond 64-bit integers"),
        ("10000000000000000000", "is beyond 64-bit integers"),
    ],
)
def test_no_integers(cell: str, reason: str) -> None:
    parsed = read("1,1\n" * 20 + f"{cell},\n" + "1,1\n" * 20, "integer -")
    assert parsed.bad == [BadRow(20, 0, cell, reason)]
    assert column(parsed) == [1] * 40


def test_thousands_and_decimal_comma() -> None:
    text = "1.234,5;1.234.567\n-12,25;10\n1.2.3;5\n1..2;4\n.5;4\n1,5.0;4\n1.;4\n,5;7\n1234.567;1\n1.23;1\n1.2345;1\n"
    parsed = read(text, "number integer", delimiter=b";", decimal=b",", thousands=b".")
    assert column(parsed) == [1234.5, -12.25, 0.5]
    assert column(parsed, 1) == [1234567, 10, 7]
    wrong = ["1.2.3", "1..2", ".5", "1,5.0", "1.", "1234.567", "1.23", "1.2345"]
    assert [b.value for b in parsed.bad] == wrong
    long = "1,000,000,000,000,000,000,000,000,000,000.5"
    assert column(read(f'"{long}"\n', "number", thousands=b",")) == [1e30]
    half = "1,090,544,144,181,609,348,671,888,949,248.00000001"
    assert column(read(f'"{half}"\n', "number", thousands=b",")) == [float(half.replace(",", ""))]
    assert column(read(f'"-{half}"\n', "number", thousands=b",")) == [-float(half.replace(",", ""))]
    assert column(
        read(
            "1,00000000000000011102230246251565404236316680908203126\n",
            "number",
            delimiter=b";",
            decimal=b",",
        )
    ) == [1.0000000000000002]


# ---- records ----


def test_empty_data() -> None:
    parsed = read("", "number category text date")
    assert len(parsed.records) == 0
    assert (parsed.lines, parsed.bad, parsed.bad_rows, parsed.texts) == (0, [], 0, b"")
    assert parsed.dictionaries == {1: []}


def test_no_columns_wanted() -> None:
    parsed = read("1,2\n3,4\n5\n", "- -")
    assert len(parsed.records) == 2
    assert parsed.bad == [BadRow(2, None, "", "has 1 cells; 2 are expected")]


def test_ragged_records() -> None:
    parsed = read('1,2\n1\n1,2,3\n,\n1,"a,b",2\n3,4,\n5,6', "number number")
    assert column(parsed) == [1.0, None, 5.0]
    assert parsed.bad == [
        BadRow(1, None, "", "has 1 cells; 2 are expected"),
        BadRow(2, None, "", "has 3 cells; 2 are expected"),
        BadRow(4, None, "", "has 3 cells; 2 are expected"),
        BadRow(5, None, "", "has 3 cells; 2 are expected"),
    ]


def test_blank_lines_and_line_ends() -> None:
    parsed = read("\n1,2\r\n\r\n  \t\n3,4\n\n \r\n5,6\r", "number text")
    assert column(parsed) == [1.0, 3.0, 5.0]
    assert column(parsed, 1) == ["2", "4", "6"]
    assert parsed.lines == 7
    assert read("\n\n", "number").lines == 2
    assert read("1\n\n \n2", "number").lines == 3
    assert column(read('""\n\n \n', "category")) == [None]
    assert column(read("a\t\n\t\n\tb", "category category", delimiter=b"\t"), 1) == [None, None, "b"]


def test_carriage_returns_belong_to_the_end_of_a_line() -> None:
    parsed = read('1,2\r\r\n3,"4"\r\r\n5,a\rb\r\r\r\n6,7\r\r', "number text")
    assert column(parsed) == [1.0, 3.0, 5.0, 6.0]
    assert column(parsed, 1) == ["2", "4", "a\rb", "7"]
    assert not parsed.bad


def test_lines_of_comment_are_passed_over() -> None:
    text = '#x,"\n1,a\n# "b",c\n2,#\n"#3",4\n"5\n# 6",7\n #8,9\n#'
    parsed = read(text, "text text", comment=b"#")
    assert column(parsed) == ["1", "2", "#3", "5\n# 6", "#8"]
    assert column(parsed, 1) == ["a", "#", "4", "7", "9"]
    assert (parsed.lines, parsed.bad) == (8, [])
    assert parsed.lines_of.tolist() == [1, 3, 4, 5, 7]
    long = f"{'#' + 'x,' * 30_000}\n1,2\n" * 3
    assert column(read(long, "number number", comment=b"#"), 1) == [2.0] * 3


def test_a_last_record_without_an_end() -> None:
    assert column(read("1,2\n3,4", "- number"), 1) == [2.0, 4.0]
    assert column(read("1,2\n3,", "- number"), 1) == [2.0, None]
    assert column(read('1,"x"', "- text"), 1) == ["x"]
    assert column(read('1,"x"\r', "- text"), 1) == ["x"]
    assert column(read("1,x\r", "- text"), 1) == ["x"]


def test_quotes() -> None:
    text = 'a,"b"\n"a,b","say ""hi"""\n"two\nlines",x"y\n"",""""\n"1\r\n2",  "no quote"\n'
    parsed = read(text, "text category")
    assert column(parsed) == ["a", "a,b", "two\nlines", "", "1\r\n2"]
    assert column(parsed, 1) == ["b", 'say "hi"', 'x"y', '"', '"no quote"']
    assert parsed.lines == 7
    assert not parsed.bad
    assert column(read('"1.5"," 2"\n"NA","-3e2"\n', "number number"), 1) == [2.0, -300.0]


def test_another_quote_and_none() -> None:
    assert column(read("'a,b',\"c\n", "text text", quote=b"'")) == ["a,b"]
    parsed = read('"a,b"\n', "text text", quote=b"")
    assert (column(parsed), column(parsed, 1)) == (['"a'], ['b"'])


def test_text_behind_a_quote() -> None:
    parsed = read('1,"a"b\n2,"c" \n3,"d"\r\n"e"x,4,5\n"x"\r,6\n7,g\n', "- text")
    assert column(parsed, 1) == ["d", "g"]
    assert [(b.line, b.column, b.value) for b in parsed.bad] == [
        (0, 1, '"a"b'),
        (1, 1, '"c" '),
        (3, 0, '"e"x'),
        (4, 0, '"x"\r'),
    ]
    assert {b.reason for b in parsed.bad} == {"has text after its closing quote"}


def test_a_quote_that_is_never_closed() -> None:
    parsed = read('1,a\n2,"b\n3,c\n4,d\n', "number text")
    assert column(parsed) == [1.0]
    assert parsed.bad == [BadRow(1, 1, '"b\n3,c\n4,d\n', "has a quote that is never closed")]
    assert parsed.lines == 4
    # Beyond the last column, there is none to name.
    assert read('1,a,"', "number text").bad == [BadRow(0, None, '"', "has a quote that is never closed")]


def test_the_first_thing_wrong_counts() -> None:
    parsed = read('x,y\nx\n"1"x,y\n1,"2"y,z\n', "number number")
    assert [(b.column, b.value) for b in parsed.bad] == [(0, "x"), (None, ""), (0, '"1"x'), (1, '"2"y')]


def test_lines_of_bad_records_follow_quoted_ends() -> None:
    parsed = read('"a\nb\nc",1\n\n"d\n",x\ne,y\n', "text number")
    assert [(b.line, b.value) for b in parsed.bad] == [(4, "x"), (6, "y")]
    assert parsed.lines == 7


def test_more_bad_rows_than_are_listed() -> None:
    parsed = read("x\n1\n" * 1500, "number")
    assert parsed.bad_rows == 1500
    assert len(parsed.bad) == 1000
    assert parsed.bad[-1] == BadRow(1998, 0, "x", "is not a number")
    assert len(parsed.records) == 1500


def test_long_values_are_cut() -> None:
    parsed = read("é" * 500 + "\n" + "\U0001f600" * 100 + "\n", "number")
    assert [b.value for b in parsed.bad] == ["é" * 80, "\U0001f600" * 80]


def test_long_records_and_blocks() -> None:
    cells = [str(i) for i in range(20000)]
    data = "\n".join(",".join(cells[i : i + 5000]) for i in range(0, 20000, 5000))
    types = " ".join(["integer"] * 5000)
    assert read(data, types).records.view("<i8").tolist() == list(range(20000))
    long = "y" * 100_000
    parsed = read(f'1,{long},2\n3,"{long},\n",4\n', "number text number")
    assert column(parsed, 1) == [long, f"{long},\n"]
    assert column(parsed, 2) == [2.0, 4.0]


@pytest.mark.parametrize("wanted", ["- number -", "category - -", "- - text", "number number -", "- - -"])
def test_columns_not_wanted_are_passed_over(wanted: str) -> None:
    parsed = read('1,2,"a,\nb"\nx,5,y\n', wanted)
    assert len(parsed.records) + len(parsed.bad) == 2
    for index, values in ((1, [2.0, 5.0]), (2, ["a,\nb", "y"])):
        if wanted.split()[index] != "-" and not parsed.bad:
            assert column(parsed, index) == values


def test_a_piece_of_a_larger_buffer() -> None:
    whole = b"9,9\n" * 20 + b"1,2\n3,4" + b"56,7\n" * 20
    parsed = parse_records(memoryview(whole)[80:87], form(2), layout("number number"))
    assert parsed.records.tolist() == [(1.0, 2.0), (3.0, 4.0)]


# ---- texts ----


def test_categories() -> None:
    parsed = read('b\na\nNA\nb\n"a"\n a\nx,y\nüé\n', "category")
    assert parsed.dictionaries == {0: ["b", "a", "üé"]}
    assert parsed.records["c0"].tolist() == [0, 1, -1, 0, 1, 1, 2]


def test_spaces_around_texts_are_left_out_unless_they_are_kept() -> None:
    text = ' a,\tb c \n a ,NA \na,"  d "\n'
    parsed = read(text, "category text")
    assert (column(parsed), column(parsed, 1)) == (["a", "a", "a"], ["b c", "", "d"])
    parsed = read(text, "category text", keep_spaces=True)
    assert (column(parsed), column(parsed, 1)) == ([" a", " a ", "a"], ["\tb c ", "NA ", "  d "])


def test_of_verbatim_texts_only_empty_ones_are_missing() -> None:
    columns = tuple(
        RecordMember(n, TableColumn(str(n), kind, notation))
        for n, (kind, notation) in enumerate(
            [("category", "verbatim"), ("text", "verbatim"), ("category", "")]
        )
    )
    parsed = parse_records(b"NA,NA,NA\n,,\n a , a ,null\n", form(3), RecordLayout(columns))
    assert (parsed.dictionaries, parsed.texts) == ({0: ["NA", "a"], 2: []}, b"NAa")
    assert parsed.records["c0"].tolist() == [0, -1, 1]


def test_cells_behind_the_columns_must_be_empty() -> None:
    parsed = read("1,a,\n2,b, \n3,c,x\n4,d\n5,e,,\n", "number category", surplus=1)
    assert column(parsed) == [1.0, 2.0]
    assert [(b.line, b.column, b.reason) for b in parsed.bad] == [
        (2, None, "has 3 cells; 2 are expected"),
        (3, None, "has 2 cells; 2 are expected"),
        (4, None, "has 4 cells; 2 are expected"),
    ]


def test_categories_of_bad_rows_are_forgotten() -> None:
    parsed = read(
        "a,1\nb,x\nc,2\nb,3\n" + "".join(f"n{i},1\nbad{i},y\n" for i in range(200)), "category number"
    )
    assert parsed.dictionaries[0] == ["a", "c", "b", *(f"n{i}" for i in range(200))]
    assert column(parsed)[:3] == ["a", "c", "b"]
    parsed = read("a,2020-01-01\nb,x\nc,2020-01-02\nb,2020-01-03\nNA,2020-01-01\nd,y\n", "category date")
    assert parsed.dictionaries == {0: ["a", "c", "b"]}
    assert column(parsed) == ["a", "c", "b", None]


def test_many_categories() -> None:
    texts = [f"category {i * 7919 % 10007}" for i in range(10007)]
    parsed = read("\n".join(texts * 2), "category")
    assert parsed.dictionaries[0] == texts
    assert parsed.records["c0"].tolist() == [*range(10007)] * 2
    doubled = [f'"{text}""{i}"' for i, text in enumerate(texts)]
    assert read("\n".join(doubled * 2), "category").dictionaries[0] == [
        f'{t}"{i}' for i, t in enumerate(texts)
    ]


def test_texts() -> None:
    parsed = read('hi,1\n"a ""b""",2\nNA,3\n,4\nbad,x\nlast,5', "text number")
    assert column(parsed) == ["hi", 'a "b"', "", "", "last"]
    assert parsed.texts == b'hia "b"last'


@pytest.mark.parametrize("type", ["category", "text", "date", "boolean"])
def test_not_utf8(type: str) -> None:
    bad = [
        b"\xff",
        b"\xc0\x80",
        b"\xed\xa0\x80",
        b"\xf4\x90\x80\x80",
        b"\xe2\x82",
        b"ab\x80",
        b"\xf8\x88\x80\x80\x80",
        b"12345678\xc3",
    ]
    data = b"".join(cell + b",1\n" for cell in bad)
    parsed = read(data, f"{type} -")
    assert [(b.value, b.reason) for b in parsed.bad] == [
        (c.decode(errors="replace"), "is not UTF-8") for c in bad
    ]
    assert read(data, f"- {type}" if type != "text" else "- text").bad_rows in (0, len(bad))


@given(st.binary(max_size=12))
@settings(max_examples=150, deadline=None)
def test_utf8_is_what_python_takes(cell: bytes) -> None:
    cell = b"a" + cell.translate(None, b'\n\r,"')
    try:
        wanted = [cell.decode()]
    except UnicodeDecodeError:
        wanted = []
    assert column(read(cell, "text", na=frozenset(), keep_spaces=True)) == wanted
    assert column(read(cell, "category", na=frozenset(), keep_spaces=True)) == wanted


# ---- converted ----


def test_converted_columns() -> None:
    text = "true,2020-01-02,10:30,2020-01-02 00:00:01,a\nNo, 1970-01-01 ,NA,NA,b\nNA,NA,00:00:01,1970-01-02T00:00:00Z,c\n"
    parsed = read(text, "boolean date time timestamp category")
    assert column(parsed, 0) == [1.0, 0.0, None]
    assert column(parsed, 1) == [18263.0, 0.0, None]
    assert column(parsed, 2) == [37800.0, None, 1.0]
    assert column(parsed, 3) == [18263 * 86400 + 1.0, None, 86400.0]
    assert parsed.dictionaries == {4: ["a", "b", "c"]}


def test_bad_values_of_converted_columns() -> None:
    text = (
        "maybe,2020-01-01,1\ntrue,today,2\nx,y,3\ntrue,2020-01-01,z\n\nfalse,NA,4\n1,1,w\ntrue,2020-02-30,5\n"
    )
    parsed = read(text, "boolean date number")
    assert parsed.bad == [
        BadRow(0, 0, "maybe", "is neither true nor false"),
        BadRow(1, 1, "today", "is not a date (YYYY-MM-DD)"),
        BadRow(2, 0, "x", "is neither true nor false"),
        BadRow(3, 2, "z", "is not a number"),
        BadRow(6, 2, "w", "is not a number"),
        BadRow(7, 1, "2020-02-30", "is not a date (YYYY-MM-DD)"),
    ]
    assert parsed.bad_rows == 6
    assert column(parsed, 2) == [4.0]


def test_more_bad_converted_values_than_are_listed() -> None:
    parsed = read("x,1\n2020-01-01,y\n2020-01-01,1\n" * 900, "date number")
    assert parsed.bad_rows == 1800
    assert len(parsed.records) == 900
    assert len(parsed.bad) == 1000
    assert [b.line for b in parsed.bad[:4]] == [0, 1, 3, 4]
    assert [b.line for b in parsed.bad] == sorted(b.line for b in parsed.bad)


# ---- where records end ----


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", ""),
        ("a,b", ""),
        ("a\nb", "a\n"),
        ("a\nb\n", "a\nb\n"),
        ('a,"b\nc\n', ""),
        ('1\na,"b\nc\n', "1\n"),
        ('1\na,"b\nc"\nd', '1\na,"b\nc"\n'),
        ('a"b\nc"\nd', 'a"b\nc"\n'),
        ('"a""\n"\n"""\n', '"a""\n"\n'),
        ('"a"x"\n"\n', '"a"x"\n'),
        ('"a"\n"b\n"', '"a"\n'),
        ('x""\n"\n', 'x""\n'),
        ('""\n"', '""\n'),
    ],
)
def test_the_end_of_records(text: str, wanted: str) -> None:
    for before in ("", "x,", "-" * 63, "-\n" * 40):
        data = before.encode() + text.encode()
        assert end_of_records(data, len(before), form(1)) == len(before) + len(wanted)
        assert end_of_records(memoryview(data), len(before), form(1)) == len(before) + len(wanted)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ('#"\na\nb', '#"\na\n'),
        ('#,"x\n', '#,"x\n'),
        ('#,"x', ""),
        ('a,"\n#",b\n', 'a,"\n#",b\n'),
        ('a,"\n#"#,"b\n', ""),
        ('"a"\n#,"\n"b\n"', '"a"\n#,"\n'),
    ],
)
def test_quotes_in_comments_mean_nothing(text: str, wanted: str) -> None:
    for before in ("", "-\n" * 40):
        data = before.encode() + text.encode()
        assert end_of_records(data, len(before), form(1, comment=b"#")) == len(before) + len(wanted)


def test_the_end_of_records_without_quotes() -> None:
    assert end_of_records(b'a\n"b\nc', 0, form(1, quote=b"")) == 5


@given(st.text('ab",;#\n\r', max_size=200), st.integers(0, 100), st.sampled_from([b"", b"#"]))
@settings(max_examples=100, deadline=None)
def test_what_ends_there_is_whole(text: str, start: int, comment: bytes) -> None:
    data = text.encode()
    start = min(start, len(data))
    made = form(1, comment=comment)
    end = end_of_records(data, start, made)
    assert start <= end <= len(data)
    # Both parts by themselves give the records of the whole.
    assert cells(data[start:], made) == cells(data[start:end], made) + cells(data[end:], made)
    assert not any("never" in b.reason for b in parse_records(data[start:end], made, layout("-")).bad)


def cells(data: bytes, dialect: TextDialect) -> list[list[bytes]]:
    return [record.cells for record in records_of(data, dialect)]


def test_records_are_taken_apart() -> None:
    assert cells(b'a, b ,"c,d"\r\n\n1\n"x\ny",2,3,4\n5', form(3)) == [
        [b"a", b" b ", b"c,d"],
        [b"1"],
        [b"x\ny", b"2", b"3", b"4"],
        [b"5"],
    ]


# ---- both forms ----

PIECES = st.sampled_from(
    [
        ",",
        "\n",
        '"',
        '""',
        "\r\n",
        "\r",
        "#",
        "1",
        "-2.5",
        "3e4",
        "NA",
        " ",
        "a",
        "é",
        "2020-01-01",
        "true",
        "x y",
        "1234567890123456789",
        "9007199254740993",
        "12345678901234567890",
        "+007",
        "\n1,2,3\n",
        '"q"',
        ",",
    ]
)


def test_whole_numbers_that_lose_digits_are_bad_cells_of_exact_columns() -> None:
    cells = [
        "7",
        "0",
        "-0",
        "00",
        "007",
        "-07",
        "+0",
        "9007199254740992",
        "9007199254740993",
        "-9007199254740993",
        "007.0",
        "18014398509481984",
        "1e16",
    ]
    cells += ["9007199254740993.0", "12345678901234567890", "10000000000000000", " 08 "]
    for type, why, wrong in (
        ("number", "is a whole number that float64 rounds", [cells[8], cells[9], "12345678901234567890"]),
        ("integer", "has leading zeros, which no number keeps", ["00", "007", "-07", " 08 "]),
    ):
        rows = [c for c in cells if type == "number" or (not set(".e") & set(c) and len(c) < 20)]
        data = "".join(f"{c}\n" for c in rows).encode()
        parsed = parse_records(data, form(1), layout(type, exact=True))
        found = [(b.value, b.reason) for b in parsed.bad if b.reason != "is not a whole number"]
        assert found == [(text, why) for text in wrong]
        assert column(parsed) == [float(c) if type == "number" else int(c) for c in rows if c not in wrong]
        assert parse_records(data, form(1), layout(type)).bad_rows == 0


@pytest.mark.skipif(not native.COMPILED, reason="not compiled")
@pytest.mark.parametrize("compiled", [True], indirect=True)
@given(
    st.lists(PIECES, max_size=120),
    st.lists(
        st.sampled_from(["-", "number", "integer", "category", "text", "date", "boolean"]),
        min_size=1,
        max_size=4,
    ),
    st.booleans(),
    st.booleans(),
    st.sampled_from([{}, {"comment": b"#"}, {"thousands": b","}]),
)
@settings(max_examples=150, deadline=None)
def test_both_forms_give_the_same(
    pieces: list[str], types: list[str], single: bool, exact: bool, marks: dict[str, bytes]
) -> None:
    data = "".join(pieces).encode()
    results: list[ParsedRows] = []
    swap: Callable[[bool], None] = lambda on: setattr(native, "COMPILED", on)  # noqa: E731
    before = native.COMPILED
    try:
        for on in (False, True):
            swap(on)
            results.append(parse_records(data, form(len(types), **marks), layout(types, single, exact)))
    finally:
        swap(before)
    plain, compiled = results
    assert plain.records.tobytes() == compiled.records.tobytes()
    assert plain.lines_of.tolist() == compiled.lines_of.tolist()
    for name in ("dictionaries", "texts", "bad", "bad_rows", "lines", "nbytes"):
        assert getattr(plain, name) == getattr(compiled, name)
