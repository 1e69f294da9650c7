"""Dataset: a catalog and its store. Cheap to make, to cut and to send to another process."""

from __future__ import annotations

import errno
import hashlib
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from penstock import _decode
from penstock.catalog import NO_OBJECT, WHOLE, Catalog, Field
from penstock.errors import ChecksumError, DataError, DecodeError, MissingError, StoreError, TruncatedError
from penstock.formats import FORMAT_NAMES, Format
from penstock.sample import Sample
from penstock.sources import source_of
from penstock.sources.listing import StoreSpec, listing_of, redacted

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping, Sequence

    from penstock.split import Parts

__all__ = ["Dataset", "Field", "Sample", "StoreSpec", "open_dataset"]


def open_dataset(
    uri: str | os.PathLike[str],
    *,
    fields: Sequence[str] | None = None,
    storage: Mapping[str, object] | None = None,
) -> Dataset:
    """Open a data set where it lies, and read no more of it than tells what is in it.

    ``uri``: a folder of class folders; a folder with a table of labels (CSV, TSV, Parquet, JSONL), or that
    table; tar shards in the WebDataset convention (a folder of them, one, or a pattern such as
    ``"shards/train-{0000..0099}.tar"``), which are indexed once; a folder that ``penstock pack`` wrote; a
    ``.npy`` or ``.npz``, or a folder of them. Local paths and ``file://``, ``s3://bucket/prefix``, ``gs://``,
    ``az://container/prefix``, ``https://`` and ``http://`` URIs. ``fields``: what a batch shall hold, as
    `Dataset.select`; by default every stored field and the label. ``storage``: what a far store needs besides its
    address and what the environment says, such as ``{"endpoint": "https://minio.lab:9000", "anonymous": True}``;
    docs/far-storage.md lists them. It may hold secrets: they are never shown, and a pickle carries them.

    `StoreError` where the place cannot be read (`DeniedError` where it refuses), `CatalogError` where what is
    there does not make sense.

        data = penstock.open("s3://bucket/photos")
        train, val = data.split(train=0.9, val=0.1, by="label", seed=7)
    """
    source = source_of(uri, storage or {}, tuple(fields or ()))
    data = Dataset(Catalog(source.table), source.store)
    return data.select(*fields) if fields else data


class Dataset:
    """Some samples of a data set, in order, and what of each a batch holds.

    Every method that narrows it returns another `Dataset` over the same table; ids stay what they are.
    """

    __slots__ = ("_fields", "_names", "catalog", "store")

    def __init__(self, catalog: Catalog, store: StoreSpec, fields: Sequence[str] | None = None) -> None:
        """``fields``: the names of what a batch holds; by default what the source says."""
        self.catalog = catalog
        """The table of these samples."""
        self.store = store
        """Where their bytes lie."""
        self._names = tuple(catalog.header.batch if fields is None else fields)
        self._fields: tuple[Field, ...] | None = None

    def __len__(self) -> int:
        return len(self.catalog)

    def __repr__(self) -> str:
        columns = f"; columns: {', '.join(self.columns)}" if self.columns else ""
        return (
            f"Dataset({len(self):,} samples of {', '.join(self._names)}{columns}; {redacted(self.store.uri)})"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return (Dataset, (self.catalog, self.store, self._names))

    @property
    def fields(self) -> tuple[Field, ...]:
        """What a batch holds, in order."""
        if self._fields is None:
            self._fields = tuple(self.catalog.field(name) for name in self._names)
        return self._fields

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the user's columns, such as label, group and split."""
        return self.catalog.columns

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes, by the number in the label column; empty where there are none."""
        return self.catalog.header.classes

    @property
    def notes(self) -> tuple[str, ...]:
        """What was left out when the source was read, in sentences."""
        return self.catalog.header.notes

    # Narrowing.

    def select(self, *fields: str) -> Dataset:
        """Return the same samples with these fields in a batch, stored ones or columns, in this order.

        `CatalogError` for a name that is not there.
        """
        chosen = Dataset(self.catalog, self.store, fields)
        _ = chosen.fields
        return chosen

    def take(self, rows: Sequence[int] | np.ndarray) -> Dataset:
        """Return the samples at these positions, in this order; IndexError for one that is not there."""
        positions = np.asarray(rows, np.int64).reshape(-1)
        if len(positions) and (positions.min() < -len(self) or positions.max() >= len(self)):
            raise IndexError(f"a position lies outside of the {len(self):,} samples")
        positions = np.where(positions < 0, positions + len(self), positions)
        return Dataset(self.catalog.take(positions), self.store, self._names)

    def where(self, expression: Any = None, /, **equals: Any) -> Dataset:
        """Return the samples for which the expression holds and each named column has the given value.

        ``expression``: a string such as ``"label == 'cat' and age >= 3 and site in ('a', 'b')"`` (see
        `penstock.condition`), or a ``pyarrow.compute.Expression``. ``equals``: a value, or a list of which
        any will do. A sample for which the answer is not known, because a value is missing, is left out.
        `CatalogError` for a column that is not there or an expression that makes no sense.

            data.where("label == 3 and group != 'x'").where(split="train")
        """
        from penstock.where import matching

        return self.take(matching(self.catalog, expression, equals))

    def sample(self, n: int, *, seed: int = 0) -> Dataset:
        """Return ``n`` samples drawn by the seed, in the order they stand here.

        Which ones depends on their ids and the seed alone; of the same seed fewer are a subset of more.
        ValueError where there are not so many.
        """
        from penstock.split import smallest

        if not 0 <= n <= len(self):
            raise ValueError(f"cannot draw {n:,} of {len(self):,} samples")
        return self.take(smallest(self.catalog.ids(), n, seed))

    def split(
        self,
        *,
        by: str | Sequence[str] | None = None,
        group: str | Sequence[str] | None = None,
        balanced: bool = False,
        seed: int = 0,
        **parts: float,
    ) -> Parts:
        """Cut into disjoint parts by ratio: ``train, val = data.split(train=0.9, val=0.1)``.

        ``parts``: name and ratio of each; together at most 1, and what is left over is in no part. Sizes
        are exact: by largest remainder. ``by``: columns whose every value keeps the ratios (within one
        sample with two parts, two with more). ``group``: columns whose every value lies in one part only;
        sizes are then exact to within the largest group. ``balanced``: as many of each value of ``by`` in a
        part, the rest left out. Which sample goes where depends on ids (or groups), their values in ``by``
        and the seed, not on the order of rows.

        Returns the parts as a tuple that also knows their names: ``data.split(…).train``. ValueError for
        ratios that make no sense, `CatalogError` for columns that are not there or have gaps.

            train, val = data.split(train=0.9, val=0.1, by="label", group="patient", seed=7)
        """
        from penstock.split import split

        return split(self, parts, by=by, group=group, balanced=balanced, seed=seed)

    # Samples.

    @overload
    def __getitem__(self, index: int) -> Sample: ...
    @overload
    def __getitem__(self, index: slice) -> Dataset: ...
    def __getitem__(self, index: int | slice) -> Sample | Dataset:
        """Return the sample at a position, decoded, or the samples of a slice as a Dataset.

        `DataError` where the sample is bad, `StoreError` where its store is.
        """
        if isinstance(index, slice):
            return Dataset(self.catalog.take(np.arange(len(self))[index]), self.store, self._names)
        position = int(index)
        if position < 0:
            position += len(self)
        if not 0 <= position < len(self):
            raise IndexError(f"sample {index} of {len(self):,}")
        row = np.array([position])
        id, key = int(self.catalog.ids(row)[0]), self.catalog.keys(row)[0]
        values = {}
        for field in self.fields:
            if field.source == "column":
                values[field.name] = self.catalog.column(field.name, row)[0]
            else:
                values[field.name] = self._stored(field, row, id, key)
        return Sample(values, id=id, key=key)

    def __iter__(self) -> Iterator[Sample]:
        for position in range(len(self)):
            yield self[position]

    def _stored(self, field: Field, row: np.ndarray, id: int, key: str) -> Any:
        at = self.catalog.addresses(field.name, row)
        place: dict[str, Any] = {"id": id, "key": key, "store": redacted(self.store.uri), "field": field.name}
        if int(at.object[0]) == NO_OBJECT:
            raise DataError(
                f"it has no {field.name!r}; leave such samples out with "
                f"where({field.name + ' is not null'!r})",
                **place,
            )
        name = self.catalog.objects[int(at.object[0])].as_py()
        offset, length = int(at.offset[0]), int(at.length[0])
        listing = listing_of(self.store.uri, self.store.options)
        try:
            data = listing.read(name, offset, None if length == WHOLE else length)
        except StoreError as error:
            if error.errno != errno.ENOENT:
                raise
            raise MissingError(f"the object {name} is not there", **place) from error
        if length != WHOLE and len(data) < length:
            entry = listing.stat(name)
            raise TruncatedError(
                f"{name} has {entry.size if entry else 0:,} bytes, and the catalog says that the sample goes on to "
                f"{offset + length:,}",
                **place,
            )
        if at.crc32c is not None and (found := _decode.crc32c(data)) != int(at.crc32c[0]):
            raise ChecksumError(
                f"its checksum is {found:08x} where the catalog says {int(at.crc32c[0]):08x}", **place
            )
        try:
            format = Format(int(at.format[0]))
            return _decode.decode(data, format, field)
        except DataError as error:
            raise type(error)(error.reason, **place) from error
        except ValueError as error:
            raise DecodeError(f"as {_format_name(int(at.format[0]))}: {error}", **place) from error

    def fingerprint(self) -> str:
        """Return a digest of which samples these are and what a batch holds; the same after opening again."""
        inner = self.catalog.fingerprint([field.name for field in self.fields])
        shapes = [(field.name, field.kind, field.source, field.dtype, field.shape) for field in self.fields]
        return hashlib.sha256(f"penstock dataset 1\n{inner}\n{shapes}".encode()).hexdigest()[:32]


def _format_name(code: int) -> str:
    try:
        return FORMAT_NAMES[Format(code)]
    except ValueError:
        return f"format {code}"
