"""Sample: one row of a dataset, its fields decoded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


class Sample(Mapping[str, Any]):
    """A mapping of field names to values, with the sample's ``id`` and ``key``.

    Images and masks are uint8 or uint16 arrays ``[H, W, C]`` and ``[H, W]``, arrays are as stored, text and
    the like is bytes, numbers are NumPy scalars.

    >>> sample = data[0]  # doctest: +SKIP
    >>> sample["image"].shape, sample.id, sample.key  # doctest: +SKIP
    """

    __slots__ = ("_values", "id", "key")

    def __init__(self, values: dict[str, Any], *, id: int, key: str) -> None:
        self._values = values
        self.id = id
        self.key = key

    def __getitem__(self, field: str) -> Any:
        try:
            return self._values[field]
        except KeyError:
            raise KeyError(f"{field!r} is not one of the fields {', '.join(self._values)}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        parts = [f"{name}={_shown(value)}" for name, value in self._values.items()]
        return f"Sample(id={self.id}, key={self.key!r}, {', '.join(parts)})"


def _shown(value: Any) -> str:
    shape = getattr(value, "shape", None)
    if shape:
        return f"{value.dtype}{list(shape)}"
    if isinstance(value, bytes) and len(value) > 40:
        return f"{len(value):,} bytes"
    return repr(value)
