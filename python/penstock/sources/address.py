"""Addresses of far stores: what of a URI says where, and what says how to get in.

A query and a user in a URI become options, so that the URI that is kept, shown and compared holds no secret.
"""

from __future__ import annotations

import base64
import re
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, unquote, urlsplit

from penstock.errors import CatalogError

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

SCHEMES = ("s3", "s3a", "gs", "az", "azure", "abfs", "http", "https")
"""Of the stores that the engine opens."""

OWN_OPTIONS = {"index": ("cache", "beside"), "listing": ("fresh", "cached")}
"""Options of penstock's own, which the store does not see, with their values."""


def is_far(uri: str | os.PathLike[str]) -> bool:
    """Whether the URI is that of an object store or web server."""
    text = str(uri)
    return "://" in text and text.partition("://")[0].lower() in SCHEMES


def store_options(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options that the store itself is opened with."""
    return {name: value for name, value in options.items() if name not in OWN_OPTIONS}


def taken_apart(uri: str, options: Mapping[str, object] | None) -> tuple[str, dict[str, str]]:
    """Return the URI without query and user, and all options as text; those given go before those of the URI.

    >>> taken_apart("s3://bucket/a?endpoint=http://127.0.0.1:8333", {"anonymous": True})
    ('s3://bucket/a', {'endpoint': 'http://127.0.0.1:8333', 'anonymous': 'true'})
    """
    given = {str(name): _text(name, value) for name, value in (options or {}).items()}
    for name, values in OWN_OPTIONS.items():
        if given.get(name, values[0]) not in values:
            raise CatalogError(f"storage[{name!r}] is {' or '.join(map(repr, values))}, not {given[name]!r}")
    if not is_far(uri):
        return uri, given
    scheme, _, rest = uri.partition("://")
    scheme = scheme.lower()
    web = scheme in ("http", "https")
    # A question mark may belong to a pattern of shards: only name=value behind it is a query.
    query = re.search(r"\?(?=[^?/]*=)|\?$", rest) if not web else re.search(r"\?", rest)
    said: dict[str, str] = {}
    if query is not None:
        behind = rest[query.end() :].partition("#")[0]
        rest = rest[: query.start()]
        if web and behind:
            said["query"] = behind
        elif not web:
            said.update(parse_qsl(behind, keep_blank_values=True))
    host, slash, path = rest.partition("/")
    user, at, host = host.rpartition("@")
    if at:
        name, _, password = (unquote(part) for part in user.partition(":"))
        if web:
            pair = base64.b64encode(f"{name}:{password}".encode()).decode()
            said["authorization"] = f"Basic {pair}"
        elif scheme in ("s3", "s3a"):
            said.update(access_key_id=name, secret_access_key=password)
        else:
            raise CatalogError(f"{scheme}:// addresses hold no user; give credentials as storage={{…}}")
    return f"{scheme}://{host}{slash}{path}", {**said, **given}


def host_of(uri: str) -> str:
    """Return the bucket, container or host of a URI."""
    return urlsplit(uri).netloc


def _text(name: object, value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (str, int, float)):
        return str(value)
    if hasattr(value, "__fspath__"):
        return str(value)
    raise TypeError(f"storage[{name!r}] is a {type(value).__name__}; give text, a number or a bool")
