"""Opponents far from their data, each the way its own documentation says, with the settings that matter swept.

All of them get the same samples through the same wire and hand over batches of uint8. Those that read objects read the
objects; WebDataset reads tars, LitData and MosaicML their own shards, of the same samples (``convert.py``).
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import numpy as np
from _meter import Place, System, main

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator

Setting = dict[str, Any]


def keys(place: Place) -> Iterator[list[str]]:
    """Batches of keys in random order, epoch after epoch."""
    draw = np.random.default_rng(0)
    while True:
        order = draw.permutation(place["count"])
        for first in range(0, len(order) - place["batch"] + 1, place["batch"]):
            yield [f"{number:05d}.bin" for number in order[first : first + place["batch"]]]


def obstore_asyncio(place: Place, setting: Setting) -> Iterator[int]:
    """One event loop, so many requests in flight over all batches, each copied into its place when it comes."""
    import obstore
    from obstore.store import S3Store

    store = S3Store(
        place["objects"],
        endpoint=place["endpoint"],
        region="us-east-1",
        virtual_hosted_style_request=False,
        client_options={"allow_http": True},
    )
    whole, size = setting["way"] == "get", place["size"]

    async def one(key: str, slot: np.ndarray, room: asyncio.Semaphore) -> None:
        async with room:
            if whole:
                data: Any = await (await obstore.get_async(store, key)).bytes_async()
            else:
                data = await obstore.get_range_async(store, key, start=0, end=size)
        slot[:] = np.frombuffer(data, np.uint8)

    async def batch(names: list[str], room: asyncio.Semaphore) -> np.ndarray:
        target = np.empty((len(names), size), np.uint8)
        await asyncio.gather(*(one(key, slot, room) for key, slot in zip(names, target, strict=True)))
        return target

    loop = asyncio.new_event_loop()
    room = asyncio.Semaphore(setting["in_flight"])
    ahead = -(-setting["in_flight"] // place["batch"]) + 1
    under_way: deque[asyncio.Task[np.ndarray]] = deque()
    for names in keys(place):
        work: Coroutine[Any, Any, np.ndarray] = batch(names, room)
        under_way.append(loop.create_task(work))
        if len(under_way) > ahead:
            yield len(loop.run_until_complete(under_way.popleft()))


def in_threads(place: Place, threads: int, fetch: Any) -> Iterator[int]:
    """Batches whose items are fetched by a pool of threads, so many batches ahead that none of them idles."""
    ahead = -(-2 * threads // place["batch"]) + 1
    under_way: deque[tuple[np.ndarray, list[Future[None]]]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        for names in keys(place):
            target = np.empty((len(names), place["size"]), np.uint8)
            futures = [pool.submit(fetch, key, slot) for key, slot in zip(names, target, strict=True)]
            under_way.append((target, futures))
            if len(under_way) > ahead:
                ready, futures = under_way.popleft()
                for future in futures:
                    future.result()
                yield len(ready)


def boto3_threads(place: Place, setting: Setting) -> Iterator[int]:
    import boto3
    from botocore.config import Config

    config = Config(
        max_pool_connections=setting["threads"],
        s3={"addressing_style": "path"},
        response_checksum_validation="when_required",
        request_checksum_calculation="when_required",
    )
    client = boto3.client("s3", endpoint_url=place["endpoint"], region_name="us-east-1", config=config)
    bucket = place["objects"]

    def fetch(key: str, slot: np.ndarray) -> None:
        slot[:] = np.frombuffer(client.get_object(Bucket=bucket, Key=key)["Body"].read(), np.uint8)

    return in_threads(place, setting["threads"], fetch)


def spdl_threads(place: Place, setting: Setting) -> Iterator[int]:
    """SPDL's pipeline: a stage that fetches in so many threads, one that puts 256 together, one that stacks."""
    import http.client
    from urllib.parse import urlsplit

    from spdl.pipeline import PipelineBuilder

    parts, local = urlsplit(place["endpoint"]), threading.local()

    def source() -> Iterator[str]:
        for names in keys(place):
            yield from names

    def fetch(key: str) -> np.ndarray:
        connection = getattr(local, "connection", None)
        if connection is None:
            connection = local.connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=60)
        connection.request("GET", f"/{place['objects']}/{key}")
        return np.frombuffer(connection.getresponse().read(), np.uint8)

    pipeline = (
        PipelineBuilder()
        .add_source(source())
        .pipe(fetch, concurrency=setting["concurrency"])
        .aggregate(place["batch"])
        .pipe(np.stack)
        .add_sink(setting["buffer"])
        .build(num_threads=setting["concurrency"] + 2)
    )
    with pipeline.auto_stop():
        for ready in pipeline:
            yield len(ready)


def endless(dataset: Any) -> Any:
    """Random orders one after the other: at no epoch's end do workers end, or wait for each other."""
    import torch

    return torch.utils.data.RandomSampler(dataset, num_samples=1000 * len(dataset))


def torch_loader(dataset: Any, place: Place, workers: int, **more: Any) -> Iterator[int]:
    import torch

    more.setdefault("batch_size", place["batch"])
    batches = torch.utils.data.DataLoader(dataset, num_workers=workers, **more)
    for batch in batches:
        values = batch["x"] if isinstance(batch, dict) else batch
        yield len(values)


class Bytes:
    """What s3torchconnector's reader becomes; can be sent to a worker."""

    def __call__(self, reader: Any) -> Any:
        import torch

        return torch.frombuffer(bytearray(reader.read()), dtype=torch.uint8)


def s3torchconnector(place: Place, setting: Setting) -> Iterator[int]:
    from s3torchconnector import S3ClientConfig, S3MapDataset

    dataset = S3MapDataset.from_objects(
        [f"s3://{place['objects']}/{number:05d}.bin" for number in range(place["count"])],
        region="us-east-1",
        endpoint=place["endpoint"],
        transform=Bytes(),
        s3client_config=S3ClientConfig(force_path_style=True),
    )
    more = {"sampler": endless(dataset), "prefetch_factor": setting["prefetch_factor"]}
    yield from torch_loader(dataset, place, setting["workers"], **more)


def litdata(place: Place, setting: Setting) -> Iterator[int]:
    """One pass: a second one would come from LitData's copy on the local disk. (A cache too small for one slows it down.)"""
    from litdata import StreamingDataLoader, StreamingDataset
    from litdata.streaming import downloader

    # It speaks https with S3 and has no setting for plain http, which everybody else uses here.
    downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True
    dataset = StreamingDataset(
        f"s3://{place['litdata']}/",
        cache_dir=place["scratch"],
        shuffle=True,
        storage_options={"endpoint_url": place["endpoint"]},
        max_cache_size="100GB",
        max_pre_download=setting["pre_download"],
    )
    for batch in StreamingDataLoader(dataset, batch_size=place["batch"], num_workers=setting["workers"]):
        yield len(batch)


def mosaicml(place: Place, setting: Setting) -> Iterator[int]:
    """One pass: a second one would come from its copy on the local disk."""
    from streaming import StreamingDataset

    dataset = StreamingDataset(
        remote=f"s3://{place['mds']}",
        local=os.path.join(place["scratch"], "mds"),
        shuffle=True,
        batch_size=place["batch"],
        predownload=setting["predownload"],
        download_timeout=60,
    )
    yield from torch_loader(dataset, place, setting["workers"])


def webdataset(place: Place, setting: Setting) -> Iterator[int]:
    import torch
    import webdataset as wds

    first = f"{place['endpoint']}/{place['tars']}"
    shards = [f"pipe:curl -s {first}/{number:05d}.tar" for number in range(place["tar_count"])]

    def tensor(sample: tuple[bytes]) -> torch.Tensor:
        return torch.frombuffer(bytearray(sample[0]), dtype=torch.uint8)

    dataset = (
        wds.WebDataset(shards, shardshuffle=len(shards), resampled=True, empty_check=False)
        .to_tuple("bin")
        .map(tensor)
        .batched(place["batch"], collation_fn=torch.stack)
    )
    yield from torch_loader(dataset, place, setting["workers"], batch_size=None)


SYSTEMS = {
    "obstore": System(
        obstore_asyncio,
        [{"in_flight": n, "way": way} for n in (128, 64) for way in ("range", "get")],
    ),
    "boto3": System(boto3_threads, [{"threads": n} for n in (64, 16, 4)]),
    "spdl": System(spdl_threads, [{"concurrency": n, "buffer": 4} for n in (64, 128)]),
    "s3torchconnector": System(
        s3torchconnector,
        [{"workers": n, "rounds": n, "prefetch_factor": p} for n, p in ((64, 1), (96, 1), (32, 2))],
    ),
    "litdata": System(
        litdata,
        [{"workers": w, "pre_download": p} for w, p in ((2, 2), (4, 2))],
    ),
    "mosaicml": System(
        mosaicml,
        [{"workers": w, "predownload": p} for w, p in ((4, 2048), (8, 2048))],
    ),
    "webdataset": System(webdataset, [{"workers": w} for w in (4, 8)]),
}

if __name__ == "__main__":
    main(SYSTEMS)
