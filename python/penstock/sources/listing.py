"""Listing: the little that a source needs of a store to find out what lies there.

Sources read headers and tables of labels through it, once, when a dataset is opened; samples are moved by
the engine. A new kind of store gives a `Listing` and registers its scheme with `register_scheme`.
"""

# ruff: noqa: PTH100, PTH103, PTH105, PTH111, PTH112, PTH116, PTH118, PTH119, PTH120 - paths come by the million here

from __future__ import annotations

import errno
import io
import os
import re
import stat
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, Protocol, cast
from urllib.parse import quote, unquote, urlsplit

from penstock.errors import CatalogError, StoreError

if TYPE_CHECKING:
    import builtins
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from _typeshed import WriteableBuffer

_OPEN_OPTIONS = frozenset(
    {"region", "anonymous", "virtual_host", "ca_file", "profile", "allow_http", "index", "listing"}
)
_HIDDEN = "•••"


@dataclass(frozen=True, slots=True)
class StoreSpec:
    """Where bytes lie: what the engine opens a store from.

    ``uri``: the root that object keys are relative to; ``options``: what the store needs besides, such as
    a region or credentials. Its repr shows no secrets, its pickle carries them.
    """

    uri: str
    options: Mapping[str, str] = field(default_factory=dict, hash=False)

    def __repr__(self) -> str:
        shown = {name: value if name in _OPEN_OPTIONS else _HIDDEN for name, value in self.options.items()}
        return (
            f"StoreSpec({redacted(self.uri)!r}, {shown!r})" if shown else f"StoreSpec({redacted(self.uri)!r})"
        )


def redacted(uri: str) -> str:
    """Return the URI without what may be secret: the password and the query."""
    if "://" not in uri or uri.startswith("file://"):
        return uri
    uri = re.sub(r"://[^/@]*@", f"://{_HIDDEN}@", uri, count=1)
    return re.sub(r"\?.*", f"?{_HIDDEN}", uri, count=1, flags=re.DOTALL)


class Read(Protocol):
    """Reads of one object that is open."""

    def __call__(self, offset: int, length: int | None = None) -> bytes:
        """Return up to ``length`` bytes from ``offset``: fewer only where the object ends."""


class Entry(NamedTuple):
    """One object of a listing."""

    key: str
    size: int
    """Bytes; -1 where the listing did not ask."""
    version: str
    """Changes when the object does: modification time in ns, or an etag. Empty where not asked."""


class Listing(Protocol):
    """What sources need of a store; keys are relative to ``spec.uri`` and cut by slashes."""

    @property
    def spec(self) -> StoreSpec:
        """Where this is."""

    def list(self, prefix: str = "", *, recursive: bool = True, sizes: bool = True) -> Iterator[Entry]:
        """Yield the objects below the folder ``prefix`` in any order, hidden ones left out.

        Not ``recursive``: only those directly in it, and the key of each folder with a slash at its end.
        Without ``sizes`` a store to which they cost something may leave size and version out.
        """

    def stat(self, key: str) -> Entry | None:
        """Return that object's entry, or None where there is none."""

    def read(self, key: str, offset: int = 0, length: int | None = None) -> bytes:
        """Return up to ``length`` bytes from ``offset``: fewer only where the object ends."""

    def reader(self, key: str) -> AbstractContextManager[Read]:
        """Open an object for many reads: ``read(offset, length)`` as in `read`."""

    def create(self, key: str) -> AbstractContextManager[BinaryIO]:
        """Open a new object for writing, which appears whole when the context ends well, or not at all."""

    def is_folder(self, key: str) -> bool:
        """Whether ``key`` is a folder."""

    def stat_many(self, keys: Iterable[str]) -> builtins.list[Entry | None]:
        """Return `stat` of many keys."""

    def read_many(self, wanted: Sequence[tuple[str, int, int | None]]) -> builtins.list[bytes]:
        """Return `read` of many (key, offset, length)."""


class LocalListing:
    """A folder of the local file system."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = os.path.abspath(os.fspath(root))
        check_name(self.root, self.root)

    @property
    def spec(self) -> StoreSpec:
        """The folder as a file:// URI with a slash at its end."""
        return StoreSpec(f"file://{quote(self.root.rstrip('/'))}/")

    def _path(self, key: str) -> str:
        return os.path.join(self.root, key) if key else self.root

    def list(self, prefix: str = "", *, recursive: bool = True, sizes: bool = True) -> Iterator[Entry]:
        """Yield the files below ``prefix``; links are followed, a loop of links is not."""
        prefix = prefix.strip("/")
        yield from self._walk(prefix + "/" if prefix else "", frozenset(), recursive=recursive, sizes=sizes)

    def _walk(
        self, prefix: str, above: frozenset[tuple[int, int]], *, recursive: bool, sizes: bool
    ) -> Iterator[Entry]:
        path = self._path(prefix)
        try:
            here = os.stat(path)
            found = list(os.scandir(path))
        except OSError as error:
            raise StoreError(error.errno, f"cannot list the folder {path}: {error.strerror}") from error
        above |= {(here.st_dev, here.st_ino)}
        for entry in found:
            if entry.name.startswith("."):
                continue
            key = prefix + entry.name
            if _is_folder(entry):
                check_name(entry.name, path)
                if not recursive:
                    yield Entry(key + "/", -1, "")
                    continue
                if entry.is_symlink():
                    target = entry.stat()
                    if (target.st_dev, target.st_ino) in above:
                        continue
                yield from self._walk(key + "/", above, recursive=recursive, sizes=sizes)
            elif sizes:
                entry_stat = _stat(entry)
                yield Entry(key, entry_stat.st_size, str(entry_stat.st_mtime_ns))
            else:
                yield Entry(key, -1, "")

    def stat(self, key: str) -> Entry | None:
        """Return the file's entry, or None where there is no such file."""
        try:
            found = os.stat(self._path(key))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise StoreError(error.errno, f"cannot look at {self._path(key)}: {error.strerror}") from error
        return Entry(key, found.st_size, str(found.st_mtime_ns))

    def read(self, key: str, offset: int = 0, length: int | None = None) -> bytes:
        """Read from the file at a position."""
        with self.reader(key) as read:
            return read(offset, length)

    @contextmanager
    def reader(self, key: str) -> Iterator[Read]:
        """Open the file; `StoreError` where that or a read of it fails."""
        path = self._path(key)
        try:
            # O_NONBLOCK: opening a named pipe without a writer must not wait for one.
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise StoreError(error.errno, f"cannot open {path}: {error.strerror}") from error
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise StoreError(errno.EINVAL, f"cannot read {path}: it is not a file")

        def read(offset: int, length: int | None = None) -> bytes:
            try:
                rest = max(0, os.fstat(descriptor).st_size - offset)
                wanted = rest if length is None else min(length, rest)
                if not wanted:  # perhaps at a place where no file can reach
                    return b""
                data = os.pread(descriptor, wanted, offset)
                while len(data) < wanted:  # Linux reads at most 2 GiB at once
                    part = os.pread(descriptor, wanted - len(data), offset + len(data))
                    if not part:
                        break
                    data += part
            except OSError as error:
                raise StoreError(error.errno, f"cannot read {path} at {offset}: {error.strerror}") from error
            return data

        try:
            yield read
        finally:
            os.close(descriptor)

    @contextmanager
    def create(self, key: str) -> Iterator[BinaryIO]:
        """Write beside the place and rename when done; OSError where that is not allowed."""
        path = self._path(key)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with tempfile.NamedTemporaryFile(
            dir=os.path.dirname(path), prefix=f".{os.path.basename(path)}.", suffix=".part", delete=False
        ) as file:
            try:
                yield cast("BinaryIO", file)
                file.flush()
                os.fchmod(file.fileno(), 0o666 & ~_umask())
                os.fsync(file.fileno())
                os.replace(file.name, path)
            except BaseException:
                Path(file.name).unlink(missing_ok=True)
                raise

    def is_folder(self, key: str) -> bool:
        """Whether it is a folder."""
        return os.path.isdir(self._path(key))

    def stat_many(self, keys: Iterable[str]) -> builtins.list[Entry | None]:
        """Return the entries of files."""
        return [self.stat(key) for key in keys]

    def read_many(self, wanted: Sequence[tuple[str, int, int | None]]) -> builtins.list[bytes]:
        """Read from files, one after the other."""
        return [self.read(*each) for each in wanted]


def _umask() -> int:
    for line in Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines():
        if line.startswith("Umask:"):
            return int(line.split()[1], 8)
    return 0o022


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself, or to where one may not look: as a link to nothing
        return False


def _stat(entry: os.DirEntry[str]) -> os.stat_result:
    try:
        return entry.stat()
    except OSError:  # a link to nothing: let it be listed, and missed when it is read
        return entry.stat(follow_symlinks=False)


def check_name(name: str, where: str) -> None:
    """Raise `CatalogError` for a name that is not UTF-8, which no table could hold."""
    try:
        name.encode()
    except UnicodeEncodeError as error:
        shown = where.encode(errors="surrogateescape").decode(errors="backslashreplace")
        raise CatalogError(
            f"the file name {os.fsencode(name)!r} in {shown} is not UTF-8; rename it "
            "(convmv -f latin1 -t utf8 --notest renames whole folders)"
        ) from error


class RangeFile(io.RawIOBase):
    """A read-only, seekable file over an object that is open for reads."""

    def __init__(self, read: Read, size: int) -> None:
        super().__init__()
        self._read = read
        self._size = size
        self._position = 0

    def readable(self) -> bool:  # noqa: D102
        return True

    def seekable(self) -> bool:  # noqa: D102
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move; positions before the start raise ValueError."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        if base + offset < 0:
            raise ValueError(f"position {base + offset} lies before the start")
        self._position = base + offset
        return self._position

    def tell(self) -> int:  # noqa: D102
        return self._position

    def read(self, size: int = -1) -> bytes:
        """Read up to ``size`` bytes, or all that is left."""
        rest = max(0, self._size - self._position)
        wanted = rest if size < 0 else min(size, rest)
        data = self._read(self._position, wanted) if wanted else b""
        self._position += len(data)
        return data

    def readall(self) -> bytes:  # noqa: D102
        return self.read()

    def readinto(self, buffer: WriteableBuffer) -> int:  # noqa: D102
        view = memoryview(buffer).cast("B")
        data = self.read(len(view))
        view[: len(data)] = data
        return len(data)


_SCHEMES: dict[str, Callable[[str, Mapping[str, str]], Listing]] = {}


def register_scheme(scheme: str, listing: Callable[[str, Mapping[str, str]], Listing]) -> None:
    """Make ``scheme://`` URIs known: ``listing(root uri, options)`` gives the listing of a root."""
    _SCHEMES[scheme] = listing


def listing_of(root: str, options: Mapping[str, str]) -> Listing:
    """Return the listing of a root URI or local path."""
    path = local_path(root)
    if path is not None:
        return LocalListing(path)
    scheme = urlsplit(root).scheme
    if scheme not in _SCHEMES:
        from penstock.sources import far  # noqa: F401 - registers its schemes; not needed for local data
    if scheme not in _SCHEMES:
        known = ", ".join(sorted({"file", *_SCHEMES}))
        raise StoreError(f"no store is known for {scheme}:// ({redacted(root)}); known are {known}")
    return _SCHEMES[scheme](root, options)


def local_path(uri: str | os.PathLike[str]) -> str | None:
    """Return the absolute path that a path or a file:// URI means; None for another scheme."""
    text = os.fspath(uri)
    if "://" not in text:
        return os.path.abspath(os.path.expanduser(text))
    parts = urlsplit(text)
    if parts.scheme != "file":
        return None
    if parts.netloc not in ("", "localhost"):
        raise StoreError(f"{text} names the host {parts.netloc!r}; a file:// URI is local: file:///path")
    return os.path.abspath(unquote(text.split("://", 1)[1].removeprefix(parts.netloc)))
