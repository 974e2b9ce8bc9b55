def run(
    what: bytes,
    images: int,
    height: int,
    width: int,
    columns: int,
    rows: int,
    out: int,
    begin: int,
    end: int,
    past: int,
    /,
) -> None: ...
