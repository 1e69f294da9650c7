"""Folders of files: class folders, flat folders, folders of .npy and .npz; files of one key are one sample.

``root/cats/7.jpg`` has the label ``cats``. Where the folders at the top are named train, val or test and hold
folders, they become the column ``split`` and the next ones the label.
"""

from __future__ import annotations

import warnings
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from penstock.arrow import strings
from penstock.errors import CatalogError
from penstock.formats import EXTENSIONS, FOREIGN_IMAGES, Format
from penstock.sources import npz
from penstock.sources.listing import redacted
from penstock.sources.members import Members, compact, encode_classes, name_parts, number, some
from penstock.table import NO_OBJECT, WHOLE, Header, Table

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.formats import NameParts
    from penstock.sources.listing import Listing
    from penstock.table import Column, Field

SPLITS = frozenset({"train", "training", "val", "valid", "validation", "test", "testing", "dev"})
_BESIDE = (
    "readme",
    "license",
    "licence",
    "thumbs.db",
    "desktop.ini",
    "md5sums",
    "sha256sums",
    "checksums",
    "copying",
)


class Files:
    """The samples of a folder: their keys in order, the files that hold them, and their stored fields."""

    def __init__(self, listing: Listing, *, leave: frozenset[str] = frozenset()) -> None:
        """List all files but those in ``leave``."""
        self.where = redacted(listing.spec.uri)
        found: list[tuple[str, NameParts | None, str]] = []
        unknown: Counter[str] = Counter()
        foreign: list[tuple[str, NameParts | None, str]] = []
        for entry in listing.list(sizes=False):
            if entry.key in leave:
                continue
            parts = name_parts(entry.key)
            if parts is not None and parts.known:
                found.append((parts.key, parts, entry.key))
            elif entry.key.lower().endswith(".npz"):
                found.append((entry.key[:-4], None, entry.key))
            elif parts is not None and _extension(entry.key)[1:] in FOREIGN_IMAGES:
                foreign.append((parts.key, parts, entry.key))
            elif not entry.key.rpartition("/")[2].lower().startswith(_BESIDE):
                unknown[_extension(entry.key)] += 1
        # TIFF and the like are bytes that can be packed as PSI: where every sample has one. Elsewhere they are strays.
        if {key for key, _, _ in found} <= {key for key, _, _ in foreign}:
            found += foreign
        else:
            unknown.update(_extension(name) for _, _, name in foreign)
        if not found:
            raise CatalogError(_nothing(self.where, unknown))
        self.notes = _notes(self.where, unknown)
        found.sort(key=lambda item: (item[0], item[2]))
        self.keys: list[str] = []
        self.objects: list[str] = []
        self.rows: list[int] = []
        """For each object the row of its sample."""
        members = Members(self.where)
        archives: list[tuple[int, int, str]] = []
        last = None
        for key, parts, name in found:
            if key != last:
                self.keys.append(key)
                last = key
            row, object = len(self.keys) - 1, len(self.objects)
            self.objects.append(name)
            self.rows.append(row)
            if parts is None:
                archives.append((row, object, name))
            else:
                members.add(row, parts.field, parts.format, object, 0, WHOLE)
        npz.add_archives(listing, archives, members)
        self.stored: tuple[Field, ...]
        self.columns: dict[str, Column]
        self.stored, self.columns = members.columns(len(self.keys))
        self.labels = _labels_in_files(listing, self) if any(f.name == "label" for f in self.stored) else None

    def keep(self, rows: np.ndarray) -> None:
        """Keep only these samples, given in rising order, and the files that hold them."""
        wanted = np.zeros(len(self.keys), bool)
        wanted[rows] = True
        files = wanted[np.array(self.rows)]
        new_object = np.cumsum(files, dtype=np.int64) - 1
        for name, column in self.columns.items():
            values = column.take(rows)
            if name.endswith(".object"):
                there = values != NO_OBJECT
                values[there] = new_object[values[there]]
            self.columns[name] = compact(values)
        new_row = np.cumsum(wanted, dtype=np.int64) - 1
        self.objects = [name for name, kept in zip(self.objects, files.tolist(), strict=True) if kept]
        self.rows = [int(new_row[row]) for row, kept in zip(self.rows, files.tolist(), strict=True) if kept]
        self.keys = [self.keys[row] for row in rows.tolist()]
        if self.labels is not None:
            self.labels = self.labels[rows]

    def table(
        self,
        columns: dict[str, Column],
        batch: Iterable[str],
        classes: tuple[str, ...] = (),
        class_column: str | None = None,
    ) -> Table:
        """Return the table with these columns of the user's besides."""
        if self.labels is not None and "label" not in columns:
            columns = {"label": self.labels, **columns}
            batch = [*batch, "label"]
        stored = tuple(field for field in self.stored if field.name not in columns)
        addresses = {
            name: column
            for name, column in self.columns.items()
            if name[1:].rpartition(".")[0] not in columns
        }
        header = Header(
            rows=len(self.keys),
            identity="",
            stored=stored,
            batch=(*(field.name for field in stored), *batch),
            columns=tuple(columns),
            classes=classes,
            class_column=class_column,
            notes=self.notes,
        )
        return Table.of(header, {**columns, **addresses}, self.objects)


def open(listing: Listing) -> Table:
    """Open a folder of samples, labelled by the folders that they lie in, if they do."""
    files = Files(listing)
    folders = [key.split("/") for key in files.keys]
    if any(len(parts) == 1 for parts in folders):
        return files.table({}, ())
    columns: dict[str, Column] = {}
    depth = 0
    if all(len(parts) > 2 for parts in folders) and {parts[0].lower() for parts in folders} <= SPLITS:
        columns["split"] = strings([parts[0] for parts in folders])
        depth = 1
    if files.labels is not None:
        return files.table(columns, ())
    labels, classes = encode_classes([parts[depth] for parts in folders])
    return files.table({"label": labels, **columns}, ("label",), classes, "label")


def _labels_in_files(listing: Listing, files: Files) -> np.ndarray | None:
    """Return the numbers in the .cls files, so that splits can use them; None unless every sample has one."""
    object = files.columns["@label.object"]
    formats = files.columns["@label.format"]
    everything = np.arange(len(files.keys))
    rows = object.take(everything)
    if (formats.take(everything) != Format.CLS).any() or (rows >= len(files.objects)).any():
        return None
    values = np.empty(len(rows), np.int64)
    texts = listing.read_many([(files.objects[index], 0, 32) for index in rows.tolist()])
    for row, text in enumerate(texts):
        value = number(text)
        if value is None:
            return None
        values[row] = value
    return values


def _extension(name: str) -> str:
    last = name.rpartition("/")[2]
    return f".{last.rpartition('.')[2].lower()}" if "." in last else "(no extension)"


def _notes(where: str, unknown: Counter[str]) -> tuple[str, ...]:
    if not unknown:
        return ()
    shown = some([f"{count:,} × {extension}" for extension, count in unknown.most_common()], 5)
    note = f"{where}: {unknown.total():,} files with extensions that are not known were left out: {shown}"
    warnings.warn(note, stacklevel=2)
    return (note,)


def _nothing(where: str, unknown: Counter[str]) -> str:
    known = ", ".join(f".{e}" for names in EXTENSIONS.values() for e in names)
    if not unknown:
        return f"{where} holds no files; check the path"
    shown = some([f"{count:,} × {extension}" for extension, count in unknown.most_common()], 5)
    return (
        f"{where} holds no file whose extension penstock knows, only {shown}; known are {known}, .npz, .tar"
    )
