"""CRC-32C (Castagnoli) of bytes, and of bytes laid end to end whose checksums are known."""

from __future__ import annotations

from functools import lru_cache

from penstock._native import crc32c

__all__ = ["combine", "crc32c"]

_POLYNOMIAL = 0x82F63B78
"""Castagnoli's polynomial, bits reversed."""


def combine(first: int, second: int, second_length: int) -> int:
    """The checksum of A + B from those of A and B and the length of B.

    Appending ``n`` zero bytes to A is a linear map on its checksum, and B's own is added to that.
    """
    bit = 0
    while second_length >> bit:
        if second_length >> bit & 1:
            first = _apply(_zeros(bit), first)
        bit += 1
    return first ^ second


def _apply(matrix: tuple[int, ...], vector: int) -> int:
    result, row = 0, 0
    while vector:
        if vector & 1:
            result ^= matrix[row]
        vector >>= 1
        row += 1
    return result


@lru_cache(maxsize=64)
def _zeros(power: int) -> tuple[int, ...]:
    """The map of ``2**power`` zero bytes, as the image of each of the 32 bits."""
    if power == 0:
        return tuple(_one_byte(1 << bit) for bit in range(32))
    half = _zeros(power - 1)
    return tuple(_apply(half, _apply(half, 1 << bit)) for bit in range(32))


def _one_byte(value: int) -> int:
    for _ in range(8):
        value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)
    return value
