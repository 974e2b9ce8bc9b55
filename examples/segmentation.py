"""Train a small U-Net on whole pictures and their masks, and evaluate it on whole pictures of any size.

    packer convert photos/ whole.h5 --size max=256 --store jpeg --pair mask=masks/ --split train=0.85,val=0.15
    python examples/segmentation.py whole.h5 --epochs 20 --sheet overlays.png

Each epoch sees another part of every picture, at another scale and aspect: RandomResizedCrop is drawn when a
row is read, and moves its mask in step. Evaluation does not crop: `collate="pad"` joins pictures of similar
size (`order=Buckets()`) into one tensor, and pixel_mask marks the valid pixels. A pixel belongs to a person
where the mask is not 0.

Prints a line an epoch: the loss, images a second, and the intersection over union (IoU) of the held-out
pictures.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping, Sequence

import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional

from packer import Buckets, PackedBatchDataset, Padding, open_pack
from packer.augment import Normalize, RandomHorizontalFlip, RandomResizedCrop

DEEPEST = 16  # sides of padded batches are multiples of this


class UNet(nn.Module):
    """Images [N, 3, H, W] -> logits [N, H, W] of person pixels; H and W multiples of 16."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        widths = [width * 2**level for level in range(5)]
        self.down = nn.ModuleList([_block(i, o) for i, o in zip([3, *widths], widths, strict=False)])
        self.up = nn.ModuleList(
            [_block(i + o, o) for i, o in zip(widths[:0:-1], widths[-2::-1], strict=True)]
        )
        self.last = nn.Conv2d(width, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        fine = []
        for level, block in enumerate(self.down):
            x = block(functional.max_pool2d(x, 2) if level else x)
            fine.append(x)
        for block, beside in zip(self.up, fine[-2::-1], strict=True):
            larger = functional.interpolate(x, scale_factor=2.0)
            x = block(torch.cat([larger, beside], dim=1))
        logits: Tensor = self.last(x)[:, 0]
        return logits


def _block(inputs: int, outputs: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for i in (inputs, outputs):
        layers += [nn.Conv2d(i, outputs, 3, padding=1, bias=False), nn.GroupNorm(8, outputs), nn.ReLU()]
    return nn.Sequential(*layers)


class Judge:
    """Evaluation on complete held-out pictures. normalize: mean and std, as in training."""

    def __init__(
        self, pack: str, batch_size: int, device: str, normalize: Mapping[str, Sequence[float]]
    ) -> None:
        self.data = PackedBatchDataset(
            pack,
            batch_size,
            split="val",
            device=device,
            order=Buckets(),
            collate=Padding(multiple=DEEPEST),
            fields=["image", "mask"],
        )
        self.mean, self.std = (
            255 * torch.tensor(normalize[name], device=device).view(3, 1, 1) for name in ("mean", "std")
        )

    @torch.inference_mode()
    def iou(self, model: nn.Module, sheet: str | None = None) -> float:
        """Return the IoU over all pixels. sheet: a PNG file for overlays of the first batch."""
        both = either = 0
        for batch in self.data:
            images = (batch.image - self.mean) / self.std * batch.pixel_mask[:, None]
            found = (model(images.contiguous(memory_format=torch.channels_last)) > 0) & batch.pixel_mask
            person = batch.mask != 0
            both += int((found & person).sum())
            either += int((found | person).sum())
            if sheet:
                save_overlays(batch.image, found, person, sheet)
                sheet = None
        return both / max(1, either)


def save_overlays(images: Tensor, found: Tensor, person: Tensor, path: str) -> None:
    """Write a sheet of up to 8 pictures: predictions tinted green, people outlined red."""
    tiles = []
    for image, own, truth in zip(images[:8].cpu(), found[:8].cpu(), person[:8].cpu(), strict=True):
        green, red = torch.tensor([40, 200, 80]).view(3, 1, 1), torch.tensor([230, 30, 30]).view(3, 1, 1)
        tile = torch.where(own, (image.int() + green) // 2, image.int())
        around = functional.max_pool2d(truth[None].float(), 5, 1, 2)[0] > truth.float()
        tiles.append(torch.where(around, red, tile).byte())
    lines = [torch.cat(tiles[i : i + 4], dim=2) for i in range(0, len(tiles) // 4 * 4 or len(tiles), 4)]
    sheet = torch.cat(lines[: 1 if len(tiles) < 8 else 2], dim=1)
    Image.fromarray(sheet.permute(1, 2, 0).numpy()).save(path)


def main() -> None:
    """Parse the command line and train."""
    parser = argparse.ArgumentParser(description="Train a small U-Net from a pack of whole pictures.")
    parser.add_argument("pack", help="a pack of RGB images with a field mask, and the splits train and val")
    parser.add_argument(
        "--size", type=int, default=128, help="side of the crops, in pixels, a multiple of 16"
    )
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--sheet", help="write overlays of held-out pictures to this PNG file")
    options = parser.parse_args()
    header = open_pack(options.pack).header
    if "mask" not in [field.name for field in header.fields] or not {"train", "val"} <= set(header.splits):
        sys.exit(
            f"{options.pack}: this example needs a field mask, and the splits train and val."
            " Convert with --pair mask=DIR and"
            " --split train=0.85,val=0.15."
        )
    torch.manual_seed(0)
    normalize = header.normalization or {"mean": [0.5] * 3, "std": [0.25] * 3}
    train = PackedBatchDataset(
        options.pack,
        options.batch_size,
        shuffle=True,
        split="train",
        device=options.device,
        fields=["image", "mask"],
        augment=[
            RandomResizedCrop(options.size, scale=(0.4, 1.0)),
            RandomHorizontalFlip(),
            Normalize(normalize["mean"], normalize["std"]),
        ],
    )
    judge = Judge(options.pack, 8, options.device, normalize)
    model = UNet().to(options.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=options.epochs * len(train))
    for epoch in range(1, options.epochs + 1):
        started, losses, rows = time.perf_counter(), [], 0
        for images, masks in train:
            loss = functional.binary_cross_entropy_with_logits(model(images), (masks != 0).float())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            losses.append(loss.detach())
            rows += len(images)
        rate = rows / (time.perf_counter() - started)
        sheet = options.sheet if epoch == options.epochs else None
        print(
            f"epoch {epoch}: loss {float(torch.stack(losses).mean()):.4f}, {rate:,.0f} images/s,"
            f" IoU {judge.iou(model, sheet):.3f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
