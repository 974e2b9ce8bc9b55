from collections.abc import Buffer

def parse(
    data: Buffer,
    out: Buffer,
    size: int,
    lines: Buffer,
    cells: Buffer,
    marks: tuple[int, ...],
    na: tuple[bytes, ...],
    powers: Buffer,
    /,
) -> tuple[int, int, int, list[tuple[int, int, bytes, int, int]], dict[int, list[str]], bytes]: ...
def end_of_records(data: Buffer, start: int, delimiter: int, quote: int, /) -> int: ...
