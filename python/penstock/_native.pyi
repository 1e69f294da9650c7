"""The native core. For penstock's own use: what users need is in ``penstock``."""

import builtins
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

from typing_extensions import Buffer

__version__: Final[str]

type_field: TypeAlias = tuple[str, str, tuple[str, Sequence[int]] | None]

class Array:
    """An n-dimensional array in native memory; ``numpy.asarray(array)`` is a view."""

    @property
    def dtype(self) -> str: ...
    @property
    def slab(self) -> tuple[int, int, int] | None:
        """``(number, address, length)`` of the slab that it lies in."""
    def __buffer__(self, flags: int, /) -> memoryview: ...

class Addresses:
    """Where samples lie: a catalog's columns, each an array or ``(start, step)``."""

    def __init__(
        self,
        table: int,
        chosen: Any,
        ids: Any,
        fields: Sequence[tuple[Any, Any, Any, Any, Any]],
    ) -> None: ...

class Store:
    @staticmethod
    def local(root: str, objects: int = 0) -> Store: ...
    @staticmethod
    def object(uri: str, options: Mapping[str, str] = ...) -> Store: ...
    @staticmethod
    def python(object: Any, name: str) -> Store: ...
    @property
    def name(self) -> str: ...
    def read(self, key: str, offset: int = 0, length: int | None = None, timeout: float = 60.0) -> bytes: ...
    def size(self, key: str, timeout: float = 60.0) -> int: ...
    def list(
        self, prefix: str = "", timeout: float = 600.0, sizes: bool = True
    ) -> builtins.list[tuple[str, int, str]]: ...
    # What follows is for object stores only.
    def level(
        self, prefix: str = "", timeout: float = 600.0
    ) -> tuple[builtins.list[tuple[str, int, str]], builtins.list[str]]: ...
    def is_folder(self, prefix: str = "", timeout: float = 60.0) -> bool: ...
    def stat(self, key: str, timeout: float = 60.0) -> tuple[int, str]: ...
    def read_many(
        self, wanted: Sequence[tuple[str, int, int | None]], in_flight: int = 32, timeout: float = 60.0
    ) -> builtins.list[bytes | OSError]: ...
    def put(self, key: str, data: bytes, timeout: float = 300.0) -> None: ...
    @property
    def takes_parts(self) -> bool: ...
    def begin_upload(self, key: str, timeout: float = 60.0) -> str: ...
    def put_parts(
        self,
        key: str,
        upload: str,
        path: str,
        first: int,
        count: int,
        part_bytes: int,
        timeout: float = 300.0,
    ) -> builtins.list[str]: ...
    def end_upload(
        self, key: str, upload: str, parts: Sequence[str], size: int, timeout: float = 300.0
    ) -> None: ...
    def abort_upload(self, key: str, upload: str, timeout: float = 60.0) -> None: ...
    def delete(self, key: str, timeout: float = 60.0) -> None: ...

class Stream:
    """Reads of an object store in a known order, fetched ahead."""

    def __init__(
        self, store: Store, keys: Any, window_bytes: int = ..., read_timeout: float = 60.0
    ) -> None: ...
    def submit(self, objects: Any, offsets: Any, lengths: Any, weights: Any) -> None: ...
    @property
    def left(self) -> int: ...
    def clear(self) -> None: ...
    def next(self, timeout: float) -> bytes:
        """The next read's bytes; StopIteration when all have been taken."""

class Pipeline:
    def __init__(
        self,
        store: Store,
        keys: Any,
        fields: Sequence[type_field],
        program: str,
        *,
        seed: int,
        threads: int | None,
        window_bytes: int,
        attempts: int,
        read_timeout: float,
        max_pixels: int,
        max_bytes: int,
        trace_capacity: int,
        keep_slabs: bool,
        displacement: int | None = None,
        cache: tuple[str, str, int] | None = None,
    ) -> None: ...
    def submit(
        self,
        addresses: Addresses,
        epoch: int,
        step: int,
        rows: Any,
        planned: Any = None,
        fenced: bool = False,
    ) -> None: ...
    def has_room(self) -> bool: ...
    @property
    def open_steps(self) -> int: ...
    @property
    def mapped_bytes(self) -> int: ...
    @property
    def threads(self) -> int: ...
    def next(self, timeout: float, skip: bool, more: bool = False) -> Finished | None: ...
    def discard(self) -> None: ...
    def describe_wait(self) -> str: ...
    def spans(self) -> list[tuple[str, int, int, int, int, int, int, int]]: ...
    def now(self) -> int: ...
    def totals(self) -> dict[str, tuple[float, int, int]]: ...
    def fetched(self) -> dict[str, int]: ...
    def cached(self) -> dict[str, int]: ...
    def in_flight(self) -> tuple[int, int] | None: ...
    def decisions(self) -> list[tuple[float, str, int, float, float, float]]: ...
    def close(self) -> int: ...

class Finished:
    @property
    def epoch(self) -> int: ...
    @property
    def step(self) -> int: ...
    @property
    def retries(self) -> int: ...
    @property
    def ids(self) -> bytes: ...
    @property
    def rows(self) -> bytes: ...
    def arrays(self) -> list[Any]: ...
    @property
    def failures(self) -> list[tuple[int, int, int, str, int, str, str]]: ...

def permutation(seed: int, epoch: int, n: int) -> Array: ...
def crc32c(data: Buffer) -> int: ...
def decode(
    data: Buffer,
    format_code: int,
    field: type_field,
    program_json: str,
    *,
    seed: int = 0,
    epoch: int = 0,
    id: int = 0,
    max_pixels: int = ...,
    max_bytes: int = ...,
) -> Array: ...
def probe(
    store: Store,
    keys: Any,
    reads: Sequence[tuple[int, int, int]],
    in_flight: int,
    seconds: float,
    timeout: float = 60.0,
) -> tuple[float, int, list[float], int, str | None]: ...
def copy_bandwidth(threads: int, chunk: int, total: int) -> float: ...

class CodecFailure(Exception):
    """What is wrong with a file: ``(kind, text, number of the file)``."""

def psi_manifest(
    blob: Buffer, requests: Any, warps: int, max_bytes: int
) -> tuple[bytes, int, list[tuple[int, int, bool, bool, int, int]]]:
    """What the GPU's kernels are told of a batch of files in ``blob``.

    Gives the manifest, where its blocks start, and the launches as (bits of a coded word, channels of a tile, whether there are
    tables, whether samples are plain bytes, first block, blocks). An int64 row of ``requests`` for each file: see
    crates/python/src/psi_device.rs.
    """

def psi_encode(
    samples: Buffer,
    sample_type: str,
    *,
    volume: bool,
    level: str,
    threads: int,
    metadata: bytes,
    tile_height: int = 0,
) -> bytes:
    """Encodes samples with the axes (slice, row, column, channel), whose strides are not negative."""

def psi_decode(
    jobs: Sequence[tuple[Buffer, tuple[int, int, int], Buffer]], threads: int, verify: bool
) -> None:
    """Decodes ``(file, start, out)``: the region from (slice, row, column) on that is as large as ``out``."""

def psi_info(file: Buffer) -> dict[str, Any]: ...
def psi_metadata(file: Buffer) -> bytes: ...
def psi_obstacle(program_json: str) -> str | None:
    """What keeps a device from doing what a compiled transform does to pictures; None where nothing does."""
