"""DALI's CPU pipeline with its fused decode-and-crop: photos.

JPEG quality options stay at DALI's defaults (no fast inverse DCT), as for every other system.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from typing import TYPE_CHECKING

import nvidia.dali.fn as fn
import nvidia.dali.types as types
from _peer import BATCH, MEAN, STD, Case, Setting, main, photo_paths
from nvidia.dali import pipeline_def

if TYPE_CHECKING:
    from collections.abc import Iterator


def stream(data: Path, setting: Setting) -> Iterator[int]:
    paths, labels = photo_paths(data)

    @pipeline_def
    def photos():
        encoded, label = fn.readers.file(
            files=paths,
            labels=labels,
            random_shuffle=True,
            initial_fill=len(paths),
            name="files",
            prefetch_queue_depth=setting["reader_depth"],
        )
        if setting["fused"]:
            image = fn.decoders.image_random_crop(
                encoded, device="cpu", random_area=[0.08, 1.0], random_aspect_ratio=[3 / 4, 4 / 3]
            )
            image = fn.resize(
                image, resize_x=224, resize_y=224, interp_type=types.INTERP_LINEAR, antialias=True
            )
        else:
            image = fn.decoders.image(encoded, device="cpu")
            image = fn.random_resized_crop(
                image, size=[224, 224], interp_type=types.INTERP_LINEAR, antialias=True
            )
        image = fn.crop_mirror_normalize(
            image,
            dtype=types.FLOAT,
            output_layout="CHW",
            mean=[255 * m for m in MEAN],
            std=[255 * s for s in STD],
            mirror=fn.random.coin_flip(),
        )
        return image, label

    pipe = photos(
        batch_size=BATCH,
        num_threads=setting["threads"],
        device_id=None,
        prefetch_queue_depth=setting["depth"],
        exec_dynamic=setting.get("dynamic", False),
        set_affinity=False,
    )
    pipe.build()
    while True:
        images, _labels = pipe.run()
        assert images.as_tensor().shape() == [BATCH, 3, 224, 224] or tuple(images.as_tensor().shape()) == (
            BATCH,
            3,
            224,
            224,
        )
        yield BATCH


def settings() -> list[Setting]:
    fused = [
        {"threads": t, "depth": d, "reader_depth": 2, "fused": True}
        for t, d in ((2, 2), (1, 2), (3, 2), (4, 2), (2, 1), (2, 3), (3, 3))
    ]
    return [
        *fused,
        {"threads": 2, "depth": 2, "reader_depth": 2, "fused": True, "dynamic": True},
        {"threads": 2, "depth": 2, "reader_depth": 2, "fused": False},
    ]


if __name__ == "__main__":
    main({"photos": {"dali": Case(settings, stream)}})
