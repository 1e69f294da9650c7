"""What a GPU's other lossless decoders do: HTJ2K through nvImageCodec, ANS of nvCOMP over residuals.

``run.py FOLDER``, with ``env/nvidia/*/lib*`` in LD_LIBRARY_PATH; FOLDER holds RGB pictures of one size as ``*.npy``. Prints one
line of JSON: bits a pixel and bytes of decoded samples a second, medians of rounds. Everything is checked to be exact.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path

import numpy as np
import torch

HOME = Path(__file__).resolve().parent / "env"
ROUNDS = 7


def prepare() -> None:
    import nvidia  # a namespace that torch's own libraries may share

    nvidia.__path__.append(str(HOME / "nvidia"))


def timed(work) -> float:
    seconds = []
    for _ in range(ROUNDS + 2):
        torch.cuda.synchronize()
        start = time.perf_counter()
        work()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[2:])


def htj2k(pictures: list[np.ndarray]) -> dict[str, float]:
    """The reversible colour transform, code blocks and levels as nvImageCodec has them; decoded on the GPU in one batch."""
    from nvidia import nvimgcodec

    on_device = [torch.from_numpy(picture).cuda() for picture in pictures]
    best: dict[str, float] = {}
    for block in ((64, 64), (32, 32)):
        params = nvimgcodec.EncodeParams(
            quality_type=nvimgcodec.QualityType.LOSSLESS,
            color_spec=nvimgcodec.ColorSpec.UNCHANGED,
            chroma_subsampling=nvimgcodec.ChromaSubsampling.CSS_444,
            jpeg2k_encode_params=nvimgcodec.Jpeg2kEncodeParams(code_block_size=block, mct_mode=1, ht=True),
        )
        encoder = nvimgcodec.Encoder()
        files = [encoder.encode(nvimgcodec.as_image(one), "jpeg2k", params=params) for one in on_device]
        if any(file is None for file in files):
            raise SystemExit("nvImageCodec does not encode HTJ2K here")
        backends = [nvimgcodec.Backend(nvimgcodec.GPU_ONLY), nvimgcodec.Backend(nvimgcodec.HYBRID_CPU_GPU)]
        decoder = nvimgcodec.Decoder(backends=backends)
        decoded = decoder.decode(files)
        for picture, image in zip(on_device, decoded, strict=True):
            if image is None or not torch.equal(torch.as_tensor(image, device="cuda"), picture):
                raise SystemExit("HTJ2K gave other pixels back")
        seconds = timed(lambda decoder=decoder, files=files: decoder.decode(files))
        rate = sum(picture.nbytes for picture in pictures) / seconds
        pixels = sum(picture.size // 3 for picture in pictures)
        if rate > best.get("rate", 0):
            best = {"bits": 8 * sum(file.size for file in files) / pixels, "rate": rate, "block": block[0]}
    return best


def residuals(picture: torch.Tensor) -> torch.Tensor:
    """Green, red minus green, blue minus their mean; left plus above minus above left; signs folded in. Planes."""
    red, green, blue = picture.permute(2, 0, 1).to(torch.int16)
    planes = torch.stack((green, red - green, blue - ((red + green) >> 1)))
    left = torch.nn.functional.pad(planes, (1, 0))[..., :-1]
    above = torch.nn.functional.pad(planes, (0, 0, 1, 0))[:, :-1]
    corner = torch.nn.functional.pad(planes, (1, 0, 1, 0))[:, :-1, :-1]
    slope = planes - left - above + corner
    wrapped = ((slope + 128) & 255) - 128
    return torch.where(wrapped < 0, -2 * wrapped - 1, 2 * wrapped).to(torch.uint8).contiguous()


def ans(pictures: list[np.ndarray]) -> dict[str, float]:
    """The entropy stage alone: prediction and colours are not undone."""
    from nvidia import nvcomp

    made = torch.cat([residuals(torch.from_numpy(picture).cuda()).reshape(-1) for picture in pictures])
    best: dict[str, float] = {}
    for chunk in (1 << 16, 1 << 17, 1 << 18):
        codec = nvcomp.Codec(
            algorithm="ANS", uncomp_chunk_size=chunk, cuda_stream=torch.cuda.current_stream().cuda_stream
        )
        coded = codec.encode(nvcomp.as_array(made))
        decoded = codec.decode(coded, "|u1")
        if not torch.equal(torch.as_tensor(decoded, device="cuda").view(torch.uint8).reshape(-1), made):
            raise SystemExit("ANS gave other bytes back")
        # With its configuration known and its output there, decoding waits for nothing.
        config = codec.decompression_config(coded)

        def work(codec=codec, coded=coded, config=config, out=decoded) -> None:
            for _ in range(4):
                codec.decode(coded, "|u1", out=out, decompression_config=config)

        rate = 4 * made.numel() / timed(work)
        if rate > best.get("rate", 0):
            best = {"bits": 8 * coded.buffer_size / (made.numel() / 3), "rate": rate, "chunk": chunk}
    return best


def main() -> None:
    prepare()
    pictures = [np.load(path) for path in sorted(Path(sys.argv[1]).glob("*.npy"))]
    found = {}
    for name, measure in (("HTJ2K", htj2k), ("ANS", ans)):
        try:
            found[name] = measure(pictures)
        except (ImportError, RuntimeError, AttributeError, TypeError, ValueError, SystemExit) as error:
            found[name] = {"error": f"{type(error).__name__}: {error}"}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
