"""Write embeddings of a pack's images into another pack, and train a linear classifier on both, joined.

    packer convert clothing/train train.h5 --size 224 --split train=0.9,val=0.1
    python examples/embeddings.py train.h5 embeddings.h5

The images are not written again: the second pack has the embeddings and the keys of the rows, which
join_fields compares. The network here is a bank of fixed random filters, so that nothing is downloaded;
replace it by your own.

Prints the images embedded a second, and a line an epoch: the loss, rows a second, and the accuracy on the
split val.
"""

from __future__ import annotations

import argparse
import sys
import time

import torch
from torch import Tensor, nn
from torch.nn import functional

from packer import Pack, PackedBatchDataset, PackerError, create, join_fields, open_pack


class Filters(nn.Module):
    """Images [N, 3, H, W] -> embeddings [N, 4 * filters]: mean and deviation of filters on two scales."""

    def __init__(self, filters: int = 64) -> None:
        super().__init__()
        self.fine, self.coarse = nn.Conv2d(3, filters, 5, stride=2), nn.Conv2d(3, filters, 9, stride=4)

    def forward(self, x: Tensor) -> Tensor:
        maps = [torch.relu(filters(x)).flatten(2) for filters in (self.fine, self.coarse)]
        return torch.cat([part for found in maps for part in (found.mean(2), found.std(2))], dim=1)


@torch.inference_mode()
def embed(pack: str, out: str, network: nn.Module, device: str) -> None:
    """Write the embeddings and keys of all images of a pack, in the pack's order."""
    images = PackedBatchDataset(
        pack,
        256,
        order="sequential",
        split="all",
        fields=["image", "key"],
        device=device,
        augment="Normalize()",
    )
    began = time.perf_counter()
    with images, create(out, shuffle=False) as embeddings:
        for batch in images:
            embeddings.write_rows(embedding=network(batch.image).cpu().numpy(), key=batch.key)
    print(f"{images.rows:,} images embedded, {images.rows / (time.perf_counter() - began):,.0f} images/s")


def train(joined: Pack, epochs: int, device: str) -> None:
    """Train a linear classifier of embeddings, and print its accuracy."""
    rows = [
        PackedBatchDataset(
            joined, 64, shuffle=split == "train", split=split, fields=["embedding", "label"], device=device
        )
        for split in ("train", "val")
    ]
    width, classes = joined.header.field("embedding").row_bytes // 4, len(rows[0].classes)
    model = nn.Sequential(nn.BatchNorm1d(width, affine=False), nn.Linear(width, classes)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for epoch in range(epochs):
        model.train()
        began, losses = time.perf_counter(), []
        for embedding, label in rows[0]:
            loss = functional.cross_entropy(model(embedding), label)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        speed = rows[0].rows / (time.perf_counter() - began)
        model.eval()
        with torch.inference_mode():
            right = sum(int((model(embedding).argmax(1) == label).sum()) for embedding, label in rows[1])
        loss_of = torch.stack(losses).mean().item()
        print(
            f"epoch {epoch + 1}: loss {loss_of:.4f}, {speed:,.0f} rows/s, accuracy {right / rows[1].rows:.3f}"
        )


def main() -> None:
    """Parse the command line, embed and train."""
    parser = argparse.ArgumentParser(description="Embed the images of a pack, and train a linear classifier.")
    parser.add_argument(
        "pack", help="a pack of RGB images of one size, with labels, and the splits train and val"
    )
    parser.add_argument("embeddings", help="pack to write, with a row for each image")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    if not {"train", "val"} <= set(open_pack(options.pack).header.splits):
        sys.exit(
            f"{options.pack}: this example needs the splits train and val. Convert with"
            " --split train=0.9,val=0.1."
        )
    torch.manual_seed(0)
    embed(options.pack, options.embeddings, Filters().to(options.device), options.device)
    train(join_fields([options.pack, options.embeddings]), options.epochs, options.device)


if __name__ == "__main__":
    try:
        main()
    except PackerError as error:
        sys.exit(str(error))
