"""A decoder of PSI written from docs/psi.md alone, to prove that the page is enough. Slow, and meant to be."""

from __future__ import annotations

import itertools
import struct
from typing import Any

import numpy as np

Bytes = np.ndarray[Any, Any]
TYPES = ["uint8", "int8", "uint16", "int16", "float16", "float32", "uint32", "int32"]


def padded(size: int) -> int:
    return -(-size // 4) * 4


def mix(chain: int, word: int) -> int:
    chain = ((chain ^ word) * 0x9E3779B1) & 0xFFFFFFFF
    return chain ^ (chain >> 15)


def hash32(data: bytes) -> int:
    words = struct.unpack(f"<{padded(len(data)) // 4}I", data + bytes(padded(len(data)) - len(data)))
    chains = list(range(1, 33))
    for index, word in enumerate(words):
        chains[index % 32] = mix(chains[index % 32], word)
    out = len(data)
    for chain in chains:
        out = mix(out, chain)
    return out


class Bits:
    def __init__(self, data: bytes) -> None:
        self.value, self.at = int.from_bytes(data, "little"), 0

    def take(self, count: int) -> int:
        out = (self.value >> self.at) & ((1 << count) - 1)
        self.at += count
        return out


class Reader:
    """A file whose header and tiles' hashes were checked."""

    def __init__(self, file: bytes) -> None:
        assert file[:5] == b"\x8fPSI\x01"
        self.type, self.bits, flags = TYPES[file[5]], file[6], file[7]
        self.width, self.height, self.depth, self.channels, self.entries, self.offset = struct.unpack_from(
            "<IIIHHI", file, 8
        )
        self.shift, self.tile_width = file[28], 4 * file[29]
        (self.tile_height,) = struct.unpack_from("<H", file, 30)
        metadata, tables, self.tiles = struct.unpack_from("<III", file, 32)
        self.decimal, self.volume, stored = file[46], bool(flags & 1), bool(flags & 2)
        assert file[47] == 0
        assert flags < 4
        size = np.dtype(self.type).itemsize
        at = 52 + padded(metadata)
        self.palette = np.frombuffer(file, self.type, self.entries * self.channels, at)
        at += padded(self.entries * self.channels * size)
        self.tables = file[at : at + tables]
        at += padded(tables)
        turned = hash32(file[52:at])
        turned = ((turned << 1) | (turned >> 31)) & 0xFFFFFFFF
        assert struct.unpack_from("<I", file, 48)[0] == hash32(file[:48]) ^ turned
        offsets = struct.unpack_from(f"<{self.tiles + 1}I", file, at)
        hashes = struct.unpack_from(f"<{self.tiles}I", file, at + 4 * (self.tiles + 1))
        payload = file[at + 4 * (2 * self.tiles + 1) :]
        self.bodies = []
        for tile, (start, end) in enumerate(itertools.pairwise(offsets)):
            body = payload[4 * start : 4 * end]
            assert hashes[tile] == hash32(body) ^ (tile * 0x85EBCA6B & 0xFFFFFFFF)
            self.bodies.append(body)
        self.stored = stored

    def decode(self) -> Bytes:
        """The samples as ``[depth, height, width, channels]``."""
        shape = (self.depth, self.height, self.width, self.channels)
        if self.stored:
            return np.frombuffer(self.bodies[0], self.type, int(np.prod(shape)), 4).reshape(shape)
        coded = 1 if self.entries else self.channels
        words = np.zeros((self.depth, self.height, self.width, coded), np.uint64)
        tile = 0
        frequencies, contexts = self.models() if self.tables else ([], [])
        for z in range(self.depth):
            for first in range(0, coded, 4):
                for y in range(0, self.height, self.tile_height):
                    for x in range(0, self.width, self.tile_width):
                        place = words[z, y : y + self.tile_height, x : x + self.tile_width, first : first + 4]
                        place[:] = Tile(self.bodies[tile], self.bits, place.shape).decode(
                            frequencies, contexts
                        )
                        tile += 1
        assert tile == self.tiles
        if self.entries:
            numbers = np.where(words[..., 0] < self.entries, words[..., 0], 0).astype(np.int64)
            return self.palette.reshape(self.entries, self.channels)[numbers]
        return self.samples(words)

    def samples(self, words: Bytes) -> Bytes:
        dtype = np.dtype(self.type)
        values = ((words << np.uint64(self.shift)) + np.uint64(self.offset)) & np.uint64(0xFFFFFFFF)
        if self.decimal:
            signed = values.astype(np.int64) - 2**31
            whole = np.where(signed >= 0, signed, -1 - signed).astype(np.float32)
            out = whole / np.float32(10 ** (self.decimal - 1))
            return np.where(signed < 0, np.copysign(out, np.float32(-1)), out).astype(np.float32)
        bits = 8 * dtype.itemsize
        low = values & np.uint64((1 << bits) - 1)
        top = np.uint64(1 << (bits - 1))
        if dtype.kind == "i":
            low = low ^ top
        elif dtype.kind == "f":
            low = np.where(low & top, low ^ top, low ^ np.uint64((1 << bits) - 1))
        return low.astype(f"u{dtype.itemsize}").view(dtype)

    def models(self) -> tuple[list[list[int]], list[list[int]]]:
        count, channels = self.tables[0], self.tables[1]
        bits = Bits(self.tables[2:])
        frequencies = []
        for _ in range(count):
            table = []
            for _ in range(bits.take(7)):
                length = bits.take(4)
                table.append((1 << (length - 1)) + bits.take(length - 1) if length else 0)
            assert sum(table) == 1024
            frequencies.append(table)
        contexts: list[int] = []
        for run in self.tables[2 + -(-bits.at // 8) :]:
            contexts += [run >> 4] * ((run & 15) + 1)
        assert len(contexts) == 256 * channels
        return frequencies, [contexts[256 * c : 256 * (c + 1)] for c in range(channels)]


class Tile:
    def __init__(self, body: bytes, bits: int, shape: tuple[int, ...]) -> None:
        self.head = body[:4]
        self.mode, transform, blocks, self.maps = body[:4]
        self.kind, self.exchange = transform & 15, bool(transform & 16)
        self.block = (1 << (blocks & 15), 1 << (blocks >> 4))
        self.body, self.bits = body[4:], bits
        self.height, self.width, self.channels = shape
        self.lanes = -(-self.width // 4)
        self.mask = (1 << bits) - 1

    def decode(self, frequencies: list[list[int]], contexts: list[list[int]]) -> Bytes:
        """The tile's words as ``[height, width, channels]``."""
        shape = (self.channels, self.height, self.width)
        kind = f"<u{self.bits // 8}"
        if self.mode == 0:
            return np.frombuffer(self.body, kind, int(np.prod(shape))).reshape(shape).transpose(1, 2, 0)
        if self.mode == 1:
            return np.frombuffer(self.body, kind, self.channels).reshape(1, 1, -1)
        if self.mode == 4:
            return self.runs(self.head[2] + 1, kind)[..., None]
        across, down = -(-self.width // self.block[0]), -(-self.height // self.block[1])
        bits = Bits(self.body)
        self.predictors = [
            [[bits.take(2) for _ in range(across)] for _ in range(down)] for _ in range(self.maps)
        ]
        self.body = self.body[-(-across * down * self.maps // 16) * 4 :]
        residuals = self.dense(frequencies, contexts) if self.mode == 2 else self.packed()
        planes = [self.predict(residuals[c], self.predictors[c % self.maps]) for c in range(self.channels)]
        return self.colours(np.array(planes, np.int64)).transpose(1, 2, 0)

    def runs(self, labels: int, kind: str) -> Bytes:
        words = np.frombuffer(self.body, kind, labels)
        bits = Bits(self.body[-(-words.nbytes // 4) * 4 :])
        width, rows = self.width, [[0] * self.width]

        def zeros() -> int:
            count = 0
            while not bits.take(1):
                count += 1
            return count

        def edge(start: int, label: int) -> int:
            ends = (q for q in range(start, width) if above[q - 1] == label != above[q])
            return next(ends, width)

        while len(rows) <= self.height:
            count = zeros()
            rows += [rows[-1]] * ((1 << count) + bits.take(count) - 1)
            if len(rows) > self.height:
                break
            above, row, label = rows[-1], list[int](), rows[-1][0]
            b = edge(1, label)
            while len(row) < width:
                count = zeros()
                if count == 4:
                    again = next((q for q in range(b, width) if above[q] == label), width)
                    b = edge(again + 1, label)
                    continue
                if count == 3:
                    end = len(row) + bits.take((width - len(row)).bit_length())
                elif count == 0:
                    end = b
                else:
                    low = count - 1 if count < 3 else count - 3
                    distance = (1 << low) + bits.take(low)
                    end = b - distance if bits.take(1) else b + distance
                assert len(row) <= end <= width
                row += [label] * (end - len(row))
                if end == width:
                    break
                if count != 3 and b < width:
                    label = above[b]
                    b = edge(b + 1, label)
                else:
                    if above[end] != label and bits.take(1):
                        label = above[end]
                    else:
                        label = bits.take((labels - 1).bit_length())
                    b = edge(end + 1, label)
            rows.append(row)
        assert len(rows) == self.height + 1
        return words[np.array(rows[1:])]

    def packed(self) -> Bytes:
        out = np.zeros((self.channels, self.height + 3, self.width + 3), np.int64)
        rows = -(-self.height // 4)
        units = rows * self.channels * self.lanes
        codes = Bits(self.body)
        values = Bits(self.body[-(-units // 8) * 4 :])
        for row in range(rows):
            for channel in range(self.channels):
                for lane in range(self.lanes):
                    code = codes.take(4)
                    width = {8: code, 16: 16 if code == 15 else code, 32: 32 if code == 15 else 2 * code}
                    unit = [values.take(width[self.bits]) for _ in range(16)]
                    out[channel, 4 * row : 4 * row + 4, 4 * lane : 4 * lane + 4] = np.reshape(unit, (4, 4))
        return out[:, : self.height, : self.width]

    def dense(self, frequencies: list[list[int]], contexts: list[list[int]]) -> Bytes:
        slots = [
            [(token, f, place) for token, f in enumerate(table) for place in range(f)]
            for table in frequencies
        ]
        states = list(struct.unpack_from(f"<{self.lanes}I", self.body))
        words = iter(np.frombuffer(self.body, "<u2", offset=4 * self.lanes).tolist())
        out = np.zeros((self.channels, self.height, self.width), np.int64)
        start = 32 if self.bits == 8 else 128
        above = [[start] * self.lanes for _ in range(self.channels)] + [[0] * self.lanes] * 3
        above2 = [list(row) for row in above]

        def refill(lanes: range) -> None:
            for lane in lanes:
                if states[lane] < 1 << 16:
                    states[lane] = (states[lane] << 16) + next(words)

        for y in range(self.height):
            current: list[list[int]] = []
            for c in range(self.channels):
                tables = []
                for lane in range(self.lanes):
                    row = above[c]
                    left, right = row[max(lane - 1, 0)], row[min(lane + 1, self.lanes - 1)]
                    energy = 3 * row[lane] + left + right + above2[c][lane]
                    level = energy
                    if energy >= 4:
                        top = energy.bit_length() - 1
                        level = min(2 * top + (energy >> (top - 1) & 1), 31)
                    if c == 0:
                        before = (above[1][lane] + above[2][lane]) // 2
                    elif c == 2:
                        before = (current[0][lane] + 3 * current[1][lane]) // 4
                    else:
                        before = current[0][lane]
                    if self.bits > 8:
                        before //= 16
                    tables.append(contexts[c][8 * level + min(before.bit_length(), 7)])
                energies = [0] * self.lanes
                for j in range(4):
                    lanes = range(-(-(self.width - j) // 4))
                    found = {}
                    for lane in lanes:
                        token, f, place = slots[tables[lane]][states[lane] % 1024]
                        states[lane] = f * (states[lane] // 1024) + place
                        raw = max(token // 2 - 5, 0) if token >= 16 else 0
                        found[lane] = [token if token < 16 else (2 + token % 2) << raw, raw]
                    if self.bits > 8:
                        refill(lanes)
                    for lane in lanes:
                        low = min(found[lane][1], 16)
                        found[lane][0] += states[lane] & ((1 << low) - 1)
                        states[lane] >>= low
                    refill(lanes)
                    if self.bits == 32:
                        for lane in lanes:
                            high = max(found[lane][1] - 16, 0)
                            found[lane][0] += (states[lane] & ((1 << high) - 1)) << 16
                            states[lane] >>= high
                        refill(lanes)
                    for lane in lanes:
                        out[c, y, 4 * lane + j] = found[lane][0]
                        energies[lane] += found[lane][0] >> (16 if self.bits == 32 else 0)
                current.append(energies)
            for c in range(self.channels):
                above2[c], above[c] = above[c], current[c]
        assert set(states) == {1 << 16}
        assert len(list(words)) <= 1
        return out

    def predict(self, residuals: Bytes, predictors: list[list[int]]) -> list[list[int]]:
        half = 1 << (self.bits - 1)
        out: list[list[int]] = []
        for y, line in enumerate(residuals.tolist()):
            row: list[int] = []
            for x, r in enumerate(line):
                e = (r >> 1) ^ -(r & 1)
                which = predictors[y // self.block[1]][x // self.block[0]] if y else 0
                left = row[x - 1] if x else (out[y - 1][0] if y else 0)
                north = out[y - 1][x] if y else 0
                corner = (out[y - 1][x - 1] if x else north) if y else 0
                slope = (north - corner) & self.mask
                signed = slope - 2 * half if slope >= half else slope
                known = [left, north, left + slope, left + (signed >> 1)][which]
                row.append((e + known) & self.mask)
            out.append(row)
        return out

    def colours(self, planes: Bytes) -> Bytes:
        if self.kind == 0:
            return planes
        half = 1 << (self.bits - 1)

        def shifted(word: Bytes) -> Bytes:
            return np.where(word >= half, word - 2 * half, word) >> 1

        c0, c1, c2 = planes[:3]
        if self.kind == 3:
            middle = (c0 - shifted(c2)) & self.mask
            blue = (middle - shifted(c1)) & self.mask
            red, green = (blue + c1) & self.mask, (c2 + middle) & self.mask
        else:
            weight = {1: 8, 2: 16}.get(self.kind, self.kind)
            green, red = c0, (c1 + c0) & self.mask
            blue = (c2 + ((weight * green + (16 - weight) * red) >> 4)) & self.mask
        first, second = (green, red) if self.exchange else (red, green)
        return np.stack([first, second, blue, *planes[3:]])
