"""A dataset as pack and verify see it: which bytes each sample has, how many there really are, a reader for them."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from penstock.catalog import NO_OBJECT, WHOLE, Addresses, Catalog
from penstock.errors import DataError, MissingError, TruncatedError
from penstock.formats import Format
from penstock.pack.convert import Item
from penstock.pack.reader import LocalReader, Reader
from penstock.sources.listing import StoreSpec, listing_of, local_path, redacted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from penstock.dataset import Dataset

_CHUNK = 1024


class Source:
    """The catalog and the store of a dataset."""

    def __init__(self, catalog: Catalog, store: StoreSpec) -> None:
        self.catalog = catalog
        self.store = store
        self.name = redacted(store.uri)
        root = local_path(store.uri)
        self._root = Path(root) if root is not None else None

    @classmethod
    def of(cls, data: Dataset) -> Source:
        """The source that a dataset is."""
        return cls(data.catalog, data.store)

    @property
    def folder(self) -> Path | None:
        """The folder whose files the source lists, where it is one."""
        origin = self.catalog.origin
        path = local_path(origin.uri) if origin is not None else None
        return Path(path).resolve() if path is not None and Path(path).is_dir() else None

    def __len__(self) -> int:
        return len(self.catalog)

    def reader(self) -> Reader:
        """A reader for one thread."""
        if self._root is not None:
            return LocalReader(self._root)
        from penstock.feed import key_table
        from penstock.pack.far_reader import FarReader

        return FarReader(listing_of(self.store.uri, self.store.options), key_table(self.catalog.objects))

    def object_keys(self, objects: npt.NDArray[np.uint32]) -> list[str]:
        """Keys of objects; empty where the sample does not have the field."""
        keys = self.catalog.objects
        cache: dict[int, str] = {}
        names = []
        for index in objects.tolist():
            if index == NO_OBJECT:
                names.append("")
                continue
            key = cache.get(index)
            if key is None:
                key = cache[index] = keys[index].as_py()
            names.append(key)
        return names

    def items(
        self, field: str, rows: npt.NDArray[np.int64], sizes: npt.NDArray[np.uint64]
    ) -> list[Item | None]:
        """The field of these rows, ``sizes`` as the plan has them; None where a sample does not have it."""
        at = self.catalog.addresses(field, rows)
        checksums: Iterable[int | None] = itertools.repeat(None) if at.crc32c is None else at.crc32c.tolist()
        columns = zip(
            self.catalog.ids(rows).tolist(),
            self.object_keys(at.object),
            at.offset.tolist(),
            sizes.tolist(),
            (at.length == WHOLE).tolist(),
            at.format.tolist(),
            checksums,
            at.object.tolist(),
            strict=False,
        )
        return [
            Item(id, field, key, offset, size, whole, Format(format), checksum, self.name, object)
            if key
            else None
            for id, key, offset, size, whole, format, checksum, object in columns
        ]

    def measure(
        self, field: str, rows: npt.NDArray[np.int64], threads: int
    ) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64], dict[int, DataError]]:
        """Bytes of ``field`` in each row, the state of its object, and what is wrong with which row.

        The size of a whole object is asked of the store, and no address may reach past its object's end. The
        state changes when the object is written to.
        """
        at = self.catalog.addresses(field, rows)
        present = at.object != NO_OBJECT
        objects, where = np.unique(at.object[present], return_inverse=True)
        sizes, states, errors = self._stat(objects, threads)
        size_of = np.zeros(len(rows), np.uint64)
        state_of = np.zeros(len(rows), np.int64)
        size_of[present], state_of[present] = sizes[where], states[where]
        known = present.copy()
        known[present] = sizes[where] != WHOLE
        bad: dict[int, DataError] = {}
        for row in np.flatnonzero(present & ~known).tolist():
            error = errors[int(at.object[row])]
            if isinstance(error, FileNotFoundError):
                bad[row] = self._error(MissingError, field, rows[row], at, row, "there is no such object")
            else:
                bad[row] = self._error(
                    DataError, field, rows[row], at, row, f"cannot be read: {error.strerror}"
                )
        partial = known & (at.length != WHOLE)
        reach = np.zeros(len(rows), bool)
        room = size_of - np.minimum(at.offset, size_of)
        reach[partial] = (at.offset[partial] > size_of[partial]) | (at.length[partial] > room[partial])
        for row in np.flatnonzero(reach).tolist():
            bad[row] = self._error(
                TruncatedError,
                field,
                rows[row],
                at,
                row,
                f"lies at {int(at.offset[row]):,} with {int(at.length[row]):,} bytes, and the object ends at "
                f"{int(size_of[row]):,}: it was cut short or changed since it was indexed",
            )
        lengths = np.where(at.length == WHOLE, size_of, at.length)
        lengths[~known] = 0
        return lengths, state_of, bad

    def _stat(
        self, objects: npt.NDArray[np.uint32], threads: int
    ) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64], dict[int, OSError]]:
        errors: dict[int, OSError] = {}
        if self._root is None:
            return self._stat_far(objects, errors)
        reader = self.reader()

        def chunk(part: npt.NDArray[np.uint32]) -> list[tuple[int, int]]:
            found = []
            for index, key in zip(part.tolist(), self.object_keys(part), strict=True):
                try:
                    found.append(reader.size(key))
                except OSError as error:
                    errors[index] = error
                    found.append((WHOLE, 0))
            return found

        parts = [objects[start : start + _CHUNK] for start in range(0, len(objects), _CHUNK)]
        pairs = list(itertools.chain.from_iterable(_in_threads(chunk, parts, threads)))
        sizes = np.fromiter((size for size, _ in pairs), np.uint64, len(pairs))
        states = np.fromiter((state for _, state in pairs), np.int64, len(pairs))
        return sizes, states, errors

    def _stat_far(
        self, objects: npt.NDArray[np.uint32], errors: dict[int, OSError]
    ) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64], dict[int, OSError]]:
        from penstock.pack.far_reader import sizes_of

        sizes = np.full(len(objects), WHOLE, np.uint64)
        states = np.zeros(len(objects), np.int64)
        for at, found in enumerate(
            sizes_of(listing_of(self.store.uri, self.store.options), self.object_keys(objects))
        ):
            if isinstance(found, OSError):
                errors[int(objects[at])] = found
            else:
                sizes[at], states[at] = found
        return sizes, states, errors

    def _error(
        self, kind: type[DataError], field: str, row: np.int64, at: Addresses, entry: int, reason: str
    ) -> DataError:
        (key,) = self.object_keys(at.object[entry : entry + 1])
        (id,) = self.catalog.ids(np.array([row])).tolist()
        return kind(reason, id=id, key=key, store=self.name, field=field)


def _in_threads(
    work: Callable[[npt.NDArray[np.uint32]], list[tuple[int, int]]],
    parts: Sequence[npt.NDArray[np.uint32]],
    threads: int,
) -> list[list[tuple[int, int]]]:
    if len(parts) < 2 or threads < 2:
        return [work(part) for part in parts]
    pool = ThreadPoolExecutor(threads, "penstock-measure")
    try:
        return list(pool.map(work, parts))
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
