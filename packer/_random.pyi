from collections.abc import Buffer

def permute(
    positions: Buffer, numbers: Buffer, n: int, a: int, b: int, key: int, round_keys: bytes, /
) -> int: ...
def unpermute(
    numbers: Buffer, positions: Buffer, n: int, a: int, b: int, key: int, round_keys: bytes, /
) -> int: ...
