"""The whole way: pack a folder of photos, train, stop and go on, predict a new photo, look at the mistakes.

    python examples/first.py photos/                        photos/cat/1.jpg, photos/dog/7.jpg, ...
    python examples/first.py photos/ --predict new.jpg      with the best model so far

Ctrl-C at any time and the same command again: it goes on with the next batch. Beside the folder it writes
photos.h5 (the pack), photos-last.pt, photos-best.pt and photos-mistakes.png.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional
from tqdm import tqdm

from packer import PackedBatchDataset, PackerError, Preprocess, convert_images, open_pack, show

TRAIN = "RandomResizedCrop(112, scale=(0.35, 1)), RandomHorizontalFlip(), Normalize()"
JUDGE = "CenterCrop(112), Normalize()"


def network(classes: int) -> nn.Sequential:
    """Return a small network for images [N, 3, 112, 112]; put your own here."""

    def layer(inputs: int, outputs: int) -> nn.Module:
        convolution = nn.Conv2d(inputs, outputs, 3, stride=2, padding=1, bias=False)
        return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU())

    layers = (layer(3, 32), layer(32, 64), layer(64, 128), layer(128, 128))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, classes))


def train(files: dict[str, Path], options: argparse.Namespace) -> None:
    """Train from the last checkpoint on; keep the model that is best on the split val."""
    pack, size = files["pack"], options.batch_size
    batches = PackedBatchDataset(pack, size, shuffle=True, split="train", device="auto", augment=TRAIN)
    val = PackedBatchDataset(pack, 256, split="val", device="auto", augment=JUDGE)
    torch.manual_seed(0)
    model = network(len(batches.classes)).to(batches.device)
    optimizer, best = torch.optim.AdamW(model.parameters(), 2e-3), 0.0
    if files["last"].exists():
        last = torch.load(files["last"], map_location=batches.device)
        model.load_state_dict(last["model"])
        optimizer.load_state_dict(last["optimizer"])
        batches.load_state_dict(last["data"])
        best = last["best"]
        print(f"going on with epoch {batches.epoch}, {batches.batches_left} batches left", flush=True)

    def save_last() -> None:
        states = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        save({**states, "data": batches.state_dict(), "best": best}, files["last"])

    try:
        for epoch in range(batches.epoch, options.epochs):
            model.train()
            for images, labels in tqdm(batches, f"epoch {epoch}", leave=False, disable=None):
                optimizer.zero_grad()
                functional.cross_entropy(model(images), labels).backward()
                optimizer.step()
            score = accuracy(model, val)
            print(f"{score:.1%} of val right; {batches.stats()}", flush=True)
            if score > best:
                best, preprocess = score, Preprocess(pack, augment=JUDGE)
                save({"model": model.state_dict(), "preprocess": preprocess.to_dict()}, files["best"])
            save_last()
    except KeyboardInterrupt:
        save_last()
        raise
    draw_mistakes(files, val)


def save(state: dict[str, object], path: Path) -> None:
    """Write a checkpoint beside the old one, then replace it: a kill leaves one of them whole."""
    torch.save(state, path.with_suffix(".new"))
    path.with_suffix(".new").replace(path)


@torch.inference_mode()
def accuracy(model: nn.Module, batches: PackedBatchDataset) -> float:
    """Return the share of rows that the model labels correctly."""
    model.eval()
    return sum(int((model(images).argmax(1) == labels).sum()) for images, labels in batches) / batches.rows


@torch.inference_mode()
def draw_mistakes(files: dict[str, Path], val: PackedBatchDataset) -> None:
    """Write a sheet of the first images of val that the best model gets wrong."""
    model = load_best(files)[0].to(val.device)
    for batch in val:
        found = model(batch.image).argmax(1)
        if (wrong := found != batch.label).any():
            mistakes = {"image": batch.image[wrong], "label": batch.label[wrong]}
            show(mistakes, val, predicted=found[wrong], rows=36).save(files["mistakes"])
            print(f"{files['mistakes']}: true and predicted classes")
            return


def load_best(files: dict[str, Path]) -> tuple[nn.Module, Preprocess]:
    """Return the best model, ready to predict, and what makes images for it."""
    best = torch.load(files["best"], map_location="cpu")
    preprocess = Preprocess(best["preprocess"])
    model = network(len(preprocess.classes or ()))
    model.load_state_dict(best["model"])
    return model.eval(), preprocess


@torch.inference_mode()
def predict(files: dict[str, Path], photos: list[str]) -> None:
    """Print the three most probable classes of each photo."""
    model, preprocess = load_best(files)
    for photo, chances in zip(photos, model(preprocess(photos)).softmax(1), strict=True):
        ranked = zip(*chances.topk(min(3, len(chances))), strict=True)
        print(f"{photo}: {', '.join(f'{preprocess.classes[i]} {chance:.0%}' for chance, i in ranked)}")


def main() -> None:
    """Parse the command line; convert unless the pack is there; train or predict."""
    parser = argparse.ArgumentParser(description="From a folder of photos to a trained network.")
    parser.add_argument("photos", type=Path, help="a folder with a sub-folder for each class")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--predict", nargs="+", metavar="PHOTO", help="classify these, train nothing")
    options = parser.parse_args()
    names = {"pack": ".h5", "last": "-last.pt", "best": "-best.pt", "mistakes": "-mistakes.png"}
    files = {name: Path(f"{options.photos.absolute()}{ending}") for name, ending in names.items()}
    try:
        if options.predict:
            predict(files, options.predict)
            return
        print(f"{options.photos} -> {files['pack']}", flush=True)
        convert_images(options.photos, files["pack"], size=128, split="train=0.8,val=0.2", resume=True)
        pack = open_pack(files["pack"])
        if not pack.header.classes:
            raise SystemExit(f"{options.photos}: has no classes. Put the photos of each class into a folder.")
        print(f"{pack.rows:,} photos of {', '.join(pack.header.classes)}", flush=True)
        train(files, options)
    except (PackerError, FileNotFoundError) as error:
        old = ", ".join(str(path) for path in files.values() if path.exists())
        raise SystemExit(f"{error}" + f"\nTo begin anew, move away: {old}" * bool(old)) from None
    except KeyboardInterrupt:
        raise SystemExit("\nStopped. The same command goes on.") from None


if __name__ == "__main__":
    main()
