"""Every store that is here keeps the contract of a store: files, and stores written in Python."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

import penstock
from penstock.errors import DeadlineError, StoreError
from penstock.stores import Store
from penstock.testing import StoreSuite
from penstock.testing.samples import loader_over

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class TestLocalFiles(StoreSuite):
    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path) -> None:
        self.folder = tmp_path

    @contextmanager
    def store(self, objects: dict[str, bytes]) -> Iterator[str]:
        for key, data in objects.items():
            path = self.folder / key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        yield str(self.folder)


class TestFileUri(TestLocalFiles):
    @contextmanager
    def store(self, objects: dict[str, bytes]) -> Iterator[str]:
        self.folder /= "with a space"
        self.folder.mkdir(exist_ok=True)
        with super().store(objects):
            yield self.folder.as_uri()


class InMemory:
    """The smallest store there can be."""

    def __init__(self, objects: dict[str, bytes]) -> None:
        self.objects = objects

    def read(self, key: str, offset: int, length: int, timeout: float) -> bytes:
        if key not in self.objects:
            raise FileNotFoundError(key)
        data = self.objects[key][offset : offset + length]
        if len(data) < length:
            raise EOFError(f"{key} has {len(self.objects[key])} bytes")
        return data

    def size(self, key: str, timeout: float) -> int:
        if key not in self.objects:
            raise FileNotFoundError(key)
        return len(self.objects[key])

    def list(self, prefix: str, timeout: float) -> list[tuple[str, int, str]]:
        folder = prefix.rstrip("/") + "/" if prefix else ""
        return [(key, len(data), "") for key, data in sorted(self.objects.items()) if key.startswith(folder)]


class Stalled(InMemory):
    """Answers when its test is over, or at the deadline it was given."""

    def __init__(self) -> None:
        super().__init__({"x": b"1"})
        self.over = threading.Event()

    def read(self, key: str, offset: int, length: int, timeout: float) -> bytes:
        if self.over.wait(timeout):
            return super().read(key, offset, length, timeout)
        raise TimeoutError(f"{key} did not come within {timeout:.1f} s")


class TestWrittenInPython(StoreSuite):
    @contextmanager
    def store(self, objects: dict[str, bytes]) -> Iterator[InMemory]:
        yield InMemory(objects)

    @contextmanager
    def stalled(self) -> Iterator[Stalled]:
        store = Stalled()
        try:
            yield store
        finally:
            store.over.set()


def test_a_python_store_is_one_by_its_methods_alone() -> None:
    assert isinstance(InMemory({}), Store)
    assert not isinstance(object(), Store)


@pytest.mark.parametrize(
    ("error", "expected", "word"),
    [
        (PermissionError("not for you"), StoreError, "not for you"),
        (ConnectionError("nobody there"), StoreError, "nobody there"),
        (TimeoutError("too slow"), DeadlineError, "too slow"),
        (ZeroDivisionError("a bug of the store's"), StoreError, "a bug of the store's"),
    ],
)
def test_what_a_python_store_raises_comes_out_in_the_loop(
    error: Exception, expected: type[Exception], word: str
) -> None:
    class Failing(InMemory):
        def read(self, key: str, offset: int, length: int, timeout: float) -> bytes:
            raise error

    objects = {"a": b"12345678"}
    with loader_over(Failing(objects), {"a": (0, 8)}) as loader, pytest.raises(expected, match=word) as told:
        list(loader)
    assert "a in Failing" in str(told.value)


def test_a_python_store_that_gives_something_else_is_told_so() -> None:
    class Wrong(InMemory):
        def read(self, key: str, offset: int, length: int, timeout: float) -> bytes:
            return "12345678"  # type: ignore[return-value]

    with (
        loader_over(Wrong({"a": b"12345678"}), {"a": (0, 8)}) as loader,
        pytest.raises(StoreError, match="something other than bytes"),
    ):
        list(loader)


def test_an_unknown_scheme_says_what_to_do() -> None:
    with pytest.raises(StoreError, match="nfs3"):
        penstock.open("nfs3://host/folder")


def test_a_named_pipe_among_the_files_does_not_hold_the_loader(tmp_path: Path) -> None:
    import os

    (tmp_path / "a").write_bytes(b"12345678")
    os.mkfifo(tmp_path / "pipe")
    with (
        loader_over(str(tmp_path), {"a": (0, 8), "pipe": (0, 8)}) as loader,
        pytest.raises(penstock.errors.PenstockError, match="pipe"),
    ):
        list(loader)
