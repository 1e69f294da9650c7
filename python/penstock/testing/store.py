"""What every store must do."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from penstock.errors import MissingError, TruncatedError
from penstock.stores import native_store

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from penstock._native import Store as NativeStore

TIMEOUT = 20.0


class StoreSuite(ABC):
    """Subclass it, implement :meth:`store`, and let pytest collect the subclass."""

    @abstractmethod
    def store(self, objects: dict[str, bytes]) -> AbstractContextManager[Any]:
        """A store that holds ``objects``, in a ``with`` block: a StoreSpec, a path, a URI or a Store of one's own."""

    def stalled(self) -> AbstractContextManager[Any] | None:
        """A store whose every read hangs, or None where there cannot be one: to test deadlines."""
        return None

    @staticmethod
    def _bytes(size: int, seed: int = 0) -> bytes:
        return np.random.default_rng(seed).bytes(size)

    @staticmethod
    def _native(store: Any) -> NativeStore:
        return native_store(store, 0)

    def test_an_object_reads_back_whole(self) -> None:
        data = self._bytes(300_000)
        with self.store({"a/b.bin": data}) as store:
            native = self._native(store)
            assert native.size("a/b.bin", TIMEOUT) == len(data)
            assert native.read("a/b.bin", timeout=TIMEOUT) == data

    def test_every_range_is_exact(self) -> None:
        data = self._bytes(70_001)
        with self.store({"x": data}) as store:
            native = self._native(store)
            for offset, length in [(0, 1), (0, 70_001), (70_000, 1), (1, 4096), (65_535, 2), (12_345, 0)]:
                assert native.read("x", offset, length, TIMEOUT) == data[offset : offset + length], (
                    offset,
                    length,
                )

    def test_an_empty_object_is_empty(self) -> None:
        with self.store({"empty": b"", "x": b"1"}) as store:
            assert self._native(store).read("empty", timeout=TIMEOUT) == b""

    def test_a_missing_key_is_said_by_name(self) -> None:
        with self.store({"x": b"1"}) as store, pytest.raises(FileNotFoundError, match="nowhere"):
            self._native(store).read("nowhere", 0, 1, TIMEOUT)

    def test_a_range_past_the_end_is_an_error_and_not_fewer_bytes(self) -> None:
        with self.store({"x": b"0123456789"}) as store:
            for offset, length in [(0, 11), (10, 1), (5, 6), (1000, 1)]:
                with pytest.raises(EOFError):
                    self._native(store).read("x", offset, length, TIMEOUT)

    def test_a_listing_is_sorted_whole_and_has_sizes(self) -> None:
        objects = {f"d{n % 3}/k{n:03}": b"x" * n for n in range(50)}
        with self.store(objects) as store:
            listed = self._native(store).list("", TIMEOUT)
            assert [(key, size) for key, size, _ in listed] == sorted((k, len(v)) for k, v in objects.items())
            below = self._native(store).list("d1", TIMEOUT)
            assert [key for key, _, _ in below] == sorted(key for key in objects if key.startswith("d1/"))

    def test_many_threads_read_at_once_and_get_their_own_bytes(self) -> None:
        objects = {f"k{n}": self._bytes(10_000, seed=n) for n in range(16)}
        with self.store(objects) as store:
            native = self._native(store)
            start = threading.Barrier(8, timeout=TIMEOUT)

            def read(thread: int) -> bool:
                start.wait()
                keys = [f"k{(thread * 5 + n) % 16}" for n in range(40)]
                return all(native.read(key, 100, 5_000, TIMEOUT) == objects[key][100:5_100] for key in keys)

            with ThreadPoolExecutor(8) as pool:
                assert all(pool.map(read, range(8), timeout=TIMEOUT))

    def test_a_read_that_hangs_ends_at_its_deadline(self) -> None:
        context = self.stalled()
        if context is None:
            pytest.skip("this store cannot be made to hang")
        with context as store:
            begun = time.monotonic()
            with pytest.raises(TimeoutError):
                self._native(store).read("x", 0, 1, 0.3)
            assert time.monotonic() - begun < 5

    def test_the_loader_reads_through_it_and_names_what_is_missing_or_short(self) -> None:
        from penstock.testing.samples import loader_over

        objects = {f"k{n}": bytes([n]) * 64 for n in range(10)}
        with self.store(objects) as store:
            with loader_over(store, dict.fromkeys(objects, (0, 64))) as loader:
                seen = {
                    int(id): bytes(row)
                    for batch in loader
                    for id, row in zip(batch.ids, batch["x"], strict=True)
                }
            assert seen == {n: objects[f"k{n}"] for n in range(10)}
            with (
                loader_over(store, {"k0": (0, 64), "gone": (0, 64)}) as loader,
                pytest.raises(MissingError, match="gone"),
            ):
                list(loader)
            with loader_over(store, {"k1": (10, 64)}) as loader, pytest.raises(TruncatedError, match="k1"):
                list(loader)
