"""DistributedDataParallel: the Loader reads its rank from torch.distributed.

torchrun --nproc-per-node 2 examples/several_ranks.py photos/
"""

from __future__ import annotations

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import penstock


def main() -> None:
    """Train; every rank ends with the weights that one process would have."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("photos", help="what penstock.open takes, with labels")
    parser.add_argument("--epochs", type=int, default=2)
    options = parser.parse_args()

    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    rank = dist.get_rank()
    device = f"cuda:{rank % torch.cuda.device_count()}" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(1)
    data = penstock.open(options.photos)
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, len(data.classes))).to(device)
    trained = DistributedDataParallel(model)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.02)
    transform = [penstock.RandomResizedCrop(16), penstock.Flip(), penstock.Normalize()]
    # 10 samples a step over all ranks; with three of them they get 3, 3 and 4.
    with penstock.Loader(
        data, 10, epochs=options.epochs, seed=7, transform=transform, device=device
    ) as loader:
        for batch in loader:
            kept = batch.size - batch.padding
            scores = trained(batch["image"])[:kept]
            loss = functional.cross_entropy(scores, batch["label"][:kept], reduction="sum") / max(kept, 1)
            optimiser.zero_grad()
            (loss * batch.weight).backward()  # the mean over ranks is the mean over the global batch
            optimiser.step()
    total = sum(float(p.detach().double().abs().sum()) for p in model.parameters())
    print(f"rank {rank} of {dist.get_world_size()}: weights {total:.6f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
