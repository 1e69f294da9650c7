"""The Dataset that torch's DataLoader and the drop-in are both given: one object an item, over HTTP, kept alive."""

from __future__ import annotations

import http.client
import os
import threading
from urllib.parse import urlsplit

import numpy as np
import torch


class Objects(torch.utils.data.Dataset):
    """`count` objects ``00000.bin`` and on, below a URL; an item is the object's bytes as a uint8 tensor.

    Each thread of each process keeps a connection: nobody pays for a handshake twice.
    """

    def __init__(self, endpoint: str, bucket: str, count: int, size: int) -> None:
        parts = urlsplit(endpoint)
        self.host, self.port, self.bucket, self.count, self.size = (
            parts.hostname,
            parts.port,
            bucket,
            count,
            size,
        )
        self._connections = threading.local()
        self._pid = os.getpid()

    def __getstate__(self) -> dict[str, object]:
        state = dict(self.__dict__)
        del state["_connections"]
        return state

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._connections = threading.local()

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        if os.getpid() != self._pid:  # a forked worker must not share the parent's connections
            self._connections, self._pid = threading.local(), os.getpid()
        connection = getattr(self._connections, "one", None)
        if connection is None:
            connection = self._connections.one = http.client.HTTPConnection(self.host, self.port, timeout=60)
        connection.request("GET", f"/{self.bucket}/{index:05d}.bin")
        answer = connection.getresponse()
        body = bytearray(self.size)
        view, got = memoryview(body), 0
        while got < self.size:
            count = answer.readinto(view[got:])
            if not count:
                raise OSError(
                    f"{index:05d}.bin ends after {got} of {self.size} bytes (status {answer.status})"
                )
            got += count
        answer.read()
        if answer.status != 200:
            raise OSError(f"{index:05d}.bin: status {answer.status}")
        return torch.from_numpy(np.frombuffer(body, np.uint8))
