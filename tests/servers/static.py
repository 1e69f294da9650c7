"""nginx as a static file server, and as an S3 server that can only be read."""

from __future__ import annotations

import os
import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import quote

from .process import Server, ServerMissing, answers, free_ports

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PAGE = 1000
"""Keys a page of a listing, as S3 has it."""

CONFIGURATION = """
{user}
daemon off;
worker_processes {workers};
pid {folder}/nginx.pid;
error_log stderr warn;
worker_rlimit_nofile 65536;
events {{ worker_connections 16384; multi_accept on; }}
http {{
    access_log off;
    sendfile on;
    tcp_nopush on;
    tcp_nodelay on;
    keepalive_requests 1000000000;
    keepalive_timeout 3600s;
    {cache}
    client_max_body_size 0;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    default_type application/octet-stream;
    map $args $page {{ default 0; ~continuation-token=(?<token>[0-9]+) $token; }}
    server {{
        listen 127.0.0.1:{port} backlog=4096;
        root "{root}";
        dav_methods {methods};
        create_full_put_path on;
        {listing}
{buckets}
    }}
}}
"""

BUCKET = """
        location ~ ^/{bucket}/?$ {{
            root "{listings}";
            default_type application/xml;
            try_files /{bucket}/$page.xml =404;
        }}
"""


class Static:
    """A running nginx: ``url`` is its root, ``bucket_url`` that of a bucket."""

    def __init__(self, server: Server, port: int) -> None:
        self.server = server
        self.port = port

    @property
    def endpoint(self) -> str:
        """``http://127.0.0.1:PORT``."""
        return f"http://127.0.0.1:{self.port}"


def _write_listing(root: Path, bucket: str, target: Path) -> None:
    """Write the pages of ListObjectsV2 for a bucket, without regard to a prefix."""
    keys = sorted(
        path.relative_to(root / bucket).as_posix() for path in (root / bucket).rglob("*") if path.is_file()
    )
    target.mkdir(parents=True)
    for number, first in enumerate(range(0, max(len(keys), 1), PAGE)):
        page = keys[first : first + PAGE]
        more = first + PAGE < len(keys)
        entries = "".join(
            f"<Contents><Key>{quote(key)}</Key><LastModified>2024-01-01T00:00:00.000Z</LastModified>"
            f"<ETag>&quot;{(root / bucket / key).stat().st_mtime_ns:x}&quot;</ETag>"
            f"<Size>{(root / bucket / key).stat().st_size}</Size>"
            "<StorageClass>STANDARD</StorageClass></Contents>"
            for key in page
        )
        token = f"<NextContinuationToken>{number + 1}</NextContinuationToken>" if more else ""
        (target / f"{number}.xml").write_text(
            '<?xml version="1.0" encoding="UTF-8"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
            f"<Name>{bucket}</Name><Prefix></Prefix><KeyCount>{len(page)}</KeyCount><MaxKeys>{PAGE}</MaxKeys>"
            f"<EncodingType>url</EncodingType><IsTruncated>{str(more).lower()}</IsTruncated>{token}{entries}"
            "</ListBucketResult>"
        )


@contextmanager
def nginx(
    root: Path,
    *,
    folder: Path,
    workers: int = 1,
    buckets: tuple[str, ...] = (),
    listing: str | None = None,
    writable: bool = False,
) -> Iterator[Static]:
    """Serve the files below ``root``, with ranges.

    ``listing``: ``"html"`` or ``"json"`` to list folders so, None to refuse. ``writable``: take PUT and DELETE.

    Each of ``buckets`` (folders of ``root``) can be listed and read like an S3 bucket in path style; nobody
    looks at signatures. The listing is made once, at the start.
    """
    binary = shutil.which("nginx") or shutil.which("/usr/sbin/nginx")
    if binary is None:
        raise ServerMissing("nginx is not installed: apt-get install nginx-light")
    (port,) = free_ports(1)
    home = folder / f"nginx-{port}"
    home.mkdir(parents=True)
    for bucket in buckets:
        _write_listing(root, bucket, home / "listings" / bucket)
    configuration = home / "nginx.conf"
    configuration.write_text(
        CONFIGURATION.format(
            user="user root;" if os.getuid() == 0 else "",
            workers=workers,
            folder=home,
            port=port,
            root=root.resolve(),
            # Files that change would be served as they were.
            cache="" if writable else "open_file_cache max=100000 inactive=1h; open_file_cache_valid 1h;",
            methods="PUT DELETE" if writable else "off",
            listing=f"autoindex on; autoindex_format {listing};" if listing else "",
            buckets="".join(BUCKET.format(bucket=bucket, listings=home / "listings") for bucket in buckets),
        )
    )
    command = [binary, "-e", "stderr", "-c", str(configuration), "-p", str(home)]
    with Server("nginx", command, log=home / "log", ready=lambda: answers(port), patience=20.0) as server:
        yield Static(server, port)
