"""CIFAR-10 in seconds on one GPU: the pack resides there as uint8, and batches are augmented from it.

    packer convert cifar10/train train.h5 --size 32
    packer convert cifar10/test test.h5 --like train.h5
    python examples/cifar10_speedrun.py train.h5 test.h5 --runs 25
    python examples/cifar10_speedrun.py train.h5 test.h5 --cifar cifar-10-python.tar.gz     (packs it first)
    python examples/cifar10_speedrun.py train.h5 test.h5 --device cpu --width 32 --epochs 4

Prints a line for each epoch of the first run and for each run, then mean and deviation. Seconds are those of
training, with whitening and augmentation; reading the pack, the warm-up (an extra run) and testing are
reported separately.

Network and schedule follow K. Jordan, "94% on CIFAR-10 in 3.29 seconds on a single GPU" (arXiv:2404.00498),
and D. Page, "How to train your ResNet 8: bag of tricks" (2019): the first layer whitens patches of 2x2 pixels
and is not trained; convolutions start as identities; batch norm has biases but no scales, and biases learn 64
times faster; the loss is summed, with labels smoothed by 0.2; Nesterov momentum with a triangular schedule;
slow weights follow (lookahead); test images are also seen mirrored and shifted by a pixel. The paper reaches
94.0 % in 3.3 s on an A100. This script has not been timed on a GPU; on two CPU cores the last command above
trains for 208 s and reaches 83.4 %, or 84.5 % with mirrored and shifted test images.
"""

from __future__ import annotations

import argparse
import math
import pickle
import platform
import statistics
import sys
import tarfile
import time
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

import packer
from packer import PackedDataset, PackerError, augment, open_pack, pack_dataset

LEARNING_RATE = 11.5  # for the summed loss of 1,024 images, divided by momentum's gain
WEIGHT_DECAY = 0.0153  # likewise; also scaled by the learning rate's schedule
MOMENTUM = 0.85
BIAS_GAIN = 64.0
SMOOTHING = 0.2
WHITENING_IMAGES, WHITENING_FLOOR, WHITENING_BIAS_EPOCHS = 5_000, 5e-4, 3
LOOKAHEAD_STEPS = 5
TEST_BATCH = 2_000


class ArrayUnpickler(pickle.Unpickler):
    """A reader of CIFAR's pickles. A pickle is a program: this one may only rebuild NumPy arrays."""

    def find_class(self, module: str, name: str) -> Any:
        """Return an object that a pickle names."""
        if (module, name) not in (
            ("numpy.core.multiarray", "_reconstruct"),
            ("numpy", "ndarray"),
            ("numpy", "dtype"),
        ):
            raise pickle.UnpicklingError(f"asks for {module}.{name}; arrays, lists and text are read")
        return super().find_class(module.replace("numpy.core", "numpy._core"), name)


def pack_cifar(archive: str, train: str, test: str) -> None:
    """Pack CIFAR-10 from its original archive, a tar of pickles."""
    with tarfile.open(archive) as tar:
        files = {
            member.name.rpartition("/")[2]: ArrayUnpickler(file, encoding="bytes").load()
            for member in tar
            if "batch" in member.name.rpartition("/")[2] and (file := tar.extractfile(member)) is not None
        }
    classes = [name.decode() for name in files.pop("batches.meta")[b"label_names"]]
    for out, prefix in ((train, "data_batch"), (test, "test_batch")):
        parts = [files[name] for name in sorted(files) if name.startswith(prefix)]
        images = np.concatenate([part[b"data"] for part in parts]).reshape(-1, 3, 32, 32)
        labels = np.concatenate([part[b"labels"] for part in parts])
        pack_dataset((images, labels), out, classes=classes)


def block(inputs: int, outputs: int) -> nn.Sequential:
    """[N, inputs, H, W] -> [N, outputs, H // 2, W // 2]."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
        nn.MaxPool2d(2),
        nn.BatchNorm2d(outputs, momentum=0.4),
        nn.GELU(),
        nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
        nn.BatchNorm2d(outputs, momentum=0.4),
        nn.GELU(),
    )


class Net(nn.Module):
    """[N, channels, H, W] -> scores [N, classes]; H and W at least 9."""

    def __init__(self, channels: int, classes: int, width: int) -> None:
        super().__init__()
        self.whiten = nn.Conv2d(channels, 8 * channels, 2)
        self.blocks = nn.Sequential(
            block(8 * channels, width), block(width, 4 * width), block(4 * width, 4 * width)
        )
        self.head = nn.Linear(4 * width, classes, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(functional.gelu(self.whiten(x)))
        scores: Tensor = self.head(functional.max_pool2d(x, x.shape[-2:]).flatten(1))
        return scores / 9

    def begin(self, images: Tensor) -> None:
        """Draw new weights; let the first layer whiten patches of these images, float32 [N, C, H, W]."""
        for module in self.modules():
            if isinstance(module, nn.Conv2d | nn.Linear | nn.BatchNorm2d):
                module.reset_parameters()
            if isinstance(module, nn.BatchNorm2d):
                module.weight.requires_grad_(False)
            elif isinstance(module, nn.Conv2d) and module is not self.whiten:
                nn.init.dirac_(module.weight.data[: module.in_channels])
        patches = images.unfold(2, 2, 1).unfold(3, 2, 1).permute(0, 2, 3, 1, 4, 5)
        flat = patches.reshape(-1, images.shape[1] * 4)
        values, vectors = torch.linalg.eigh(flat.T @ flat / len(flat))
        filters = (vectors / (values + WHITENING_FLOOR).sqrt()).T.reshape(-1, images.shape[1], 2, 2)
        self.whiten.weight.requires_grad_(False).copy_(torch.cat([filters, -filters]))
        nn.init.zeros_(self.whiten.bias).requires_grad_(True)  # type: ignore[arg-type]


class Lookahead:
    """Slow weights that follow the fast weights, and replace them every few steps."""

    def __init__(self, model: nn.Module) -> None:
        self.fast = [value for value in model.state_dict().values() if value.is_floating_point()]
        self.slow = [value.clone() for value in self.fast]

    def step(self, keep: float) -> None:
        """keep: share of the slow weights that is kept, 0 to 1."""
        for slow, fast in zip(self.slow, self.fast, strict=True):
            slow.lerp_(fast, 1 - keep)
            fast.copy_(slow)


def optimizer_of(model: Net, batch_size: int) -> torch.optim.SGD:
    """Return SGD for a loss that is summed over the batch."""
    rate = LEARNING_RATE / 1024 / (1 + 1 / (1 - MOMENTUM))
    decay = WEIGHT_DECAY / 1024 * batch_size / (1 + 1 / (1 - MOMENTUM))
    learned = [p for p in model.parameters() if p.requires_grad]
    biases = [p for p in learned if p.ndim == 1 and p is not model.whiten.bias]
    others = [p for p in learned if p.ndim > 1 or p is model.whiten.bias]
    return torch.optim.SGD(
        [
            {"params": biases, "lr": rate * BIAS_GAIN, "weight_decay": decay / (rate * BIAS_GAIN)},
            {"params": others, "lr": rate, "weight_decay": decay / rate},
        ],
        momentum=MOMENTUM,
        nesterov=True,
    )


def triangle(step: int, steps: int, start: float = 0.2, end: float = 0.07, peak: float = 0.23) -> float:
    """Return the learning rate's factor at a step: up from start to 1 at peak, then down to end."""
    top = max(1, int(peak * steps))
    if step < top:
        return start + (1 - start) * step / top
    return 1 + (end - 1) * (step - top) / max(1, steps - top)


class Speedrun:
    """Both packs on the device, and everything else that all runs share."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.device, self.dtype = torch.device(options.device), getattr(torch, options.dtype)
        self.epochs, started = options.epochs, self.now()
        header = open_pack(options.train).header
        if header.classes is None:
            sys.exit(f"{options.train}: it has no labels with class names; this example needs them.")
        try:
            open_pack(options.train).check_classes(open_pack(options.test))
        except PackerError as error:
            sys.exit(str(error))
        # All rows of both packs: uint8 [N, C, H, W] and int64 [N].
        packs = [PackedDataset(path, fields=["image", "label"]) for path in (options.train, options.test)]
        self.images, self.labels = (part.to(self.device) for part in packs[0][: options.subset])
        self.test_images, self.test_labels = (part.to(self.device) for part in packs[1][:])
        line = (
            f"{len(self.images):,} images to train on, {len(self.test_images):,} to test on,"
            f" {len(header.classes)} classes"
        )
        print(f"{line}; read and brought to {options.device} in {self.now() - started:.2f} s", flush=True)
        channels, height, width = shape = tuple(self.images.shape[1:])
        mean, std = header.normalization["mean"], header.normalization["std"]
        normalize = augment.Normalize(mean, std, self.dtype)
        crop = augment.RandomCrop((height, width), options.padding, padding_mode="reflect")
        cutout = [augment.Cutout(options.cutout)] if options.cutout else []  # after Normalize the mean is 0
        flip = augment.AlternatingHorizontalFlip()
        self.pipeline = augment.Pipeline([flip, crop, normalize, *cutout], shape)
        self.plain = augment.Pipeline([augment.Normalize(mean, std)], shape)
        crop = augment.RandomCrop((height, width), 1, padding_mode="reflect")
        self.views = augment.Pipeline([augment.RandomHorizontalFlip(), crop, normalize], shape)
        self.batch_size = min(options.batch_size, len(self.images))
        self.model = Net(channels, len(header.classes), options.width)
        self.model.to(self.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.call = torch.compile(self.model) if options.compile else self.model

    def now(self) -> float:
        """Return the time in seconds, after the device has finished its work."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()

    def scores(self, images: Tensor) -> Tensor:
        """Return the scores of augmented images, float32 [N, classes]."""
        with torch.autocast(self.device.type, self.dtype, enabled=self.dtype != torch.float32):
            scores: Tensor = self.call(images)
        return scores.float()

    def train(self, seed: int, *, tell: bool) -> float:
        """Train from new weights. Returns the seconds. tell: print a line an epoch, outside the clock."""
        torch.manual_seed(seed)
        started, paused = self.now(), 0.0
        some = self.images[:WHITENING_IMAGES]
        self.model.begin(self.plain(some, torch.arange(len(some))))
        self.model.train()
        slow, optimizer = Lookahead(self.model), optimizer_of(self.model, self.batch_size)
        per_epoch = len(self.images) // self.batch_size
        steps = max(1, math.ceil(self.epochs * per_epoch))
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: triangle(step, steps))
        for step in range(steps):
            epoch, at = divmod(step, per_epoch)
            if at == 0:
                loss_sum, right = torch.zeros(2, device=self.device)
                order = torch.randperm(len(self.images))
                # An epoch's draws at once: they depend on seed, epoch and row, not on the order.
                drawn = self.pipeline.prepare(self.pipeline.sample(order, epoch, seed=seed))
                drawn.on(self.device)
                order = order.to(self.device)
                self.model.whiten.bias.requires_grad_(epoch < WHITENING_BIAS_EPOCHS)  # type: ignore[union-attr]
            batch = slice(at * self.batch_size, (at + 1) * self.batch_size)
            rows = order[batch]
            # Gathered as [N, H, W, C], images remain channels_last.
            images = self.images.permute(0, 2, 3, 1).index_select(0, rows).permute(0, 3, 1, 2)
            images, labels = self.pipeline.apply(images, drawn[batch]), self.labels[rows]
            scores = self.scores(images)
            loss = functional.cross_entropy(scores, labels, label_smoothing=SMOOTHING, reduction="sum")
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            last = step == steps - 1
            if last or step % LOOKAHEAD_STEPS == LOOKAHEAD_STEPS - 1:
                slow.step(keep=1.0 if last else 0.95**LOOKAHEAD_STEPS * (step / steps) ** 3)
            if tell:
                # Sum tensors: reading a number would synchronise the GPU at every step.
                loss_sum += loss.detach()
                right += (scores.argmax(1) == labels).sum()
            if tell and (last or at == per_epoch - 1):
                asked, seen = self.now(), (at + 1) * self.batch_size
                line = f"epoch {epoch + 1}: loss {float(loss_sum) / seen:.3f}, accuracy {float(right) / seen:.1%}, "
                print(f"{line}on the test images {self.test(views=1)[0]:.2%}", flush=True)
                self.model.train()
                paused += self.now() - asked
        return self.now() - started - paused

    def test(self, views: int = 3) -> list[float]:
        """Return the first `views` test accuracies: plain images, also mirrored, also shifted by a pixel."""
        self.model.eval()
        right = torch.zeros(views, device=self.device)
        with torch.inference_mode():
            for start in range(0, len(self.test_images), TEST_BATCH):
                batch = slice(start, start + TEST_BATCH)
                images, labels = self.test_images[batch], self.test_labels[batch]
                scores = [self.view(images, False, 0)]
                if views > 1:
                    scores.append(scores[0] + self.view(images, True, 0))
                if views > 2:
                    moved = [self.view(images, flip, by) for flip in (False, True) for by in (-1, 1)]
                    scores.append(2 * scores[1] + torch.stack(moved).sum(0))
                right += torch.stack([(s.argmax(1) == labels).sum() for s in scores])
        return [float(n) / len(self.test_images) for n in right]

    def view(self, images: Tensor, flip: bool, by: int) -> Tensor:
        """Return scores of images, all mirrored or not and shifted alike, drawn outside the pipeline."""
        flips, corners = torch.full((len(images),), flip), torch.full((len(images),), 1 + by)
        return self.scores(self.views.apply(images, [{"flip": flips}, {"top": corners, "left": corners}, {}]))


def spread(numbers: list[float]) -> str:
    """Return the mean and, of several values, the standard deviation."""
    mean = f"{statistics.mean(numbers):.2%}"
    return mean if len(numbers) == 1 else f"{mean} (deviation {statistics.stdev(numbers):.2%})"


def main() -> None:
    """Parse the command line, and train the requested number of times."""
    parser = argparse.ArgumentParser(description="CIFAR-10 from a pack, fast.")
    parser.add_argument("train", help="a pack of 32x32 images with classes")
    parser.add_argument("test", help="a pack of the same classes")
    parser.add_argument("--cifar", help="cifar-10-python.tar.gz, to be packed first as train and test")
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--epochs", type=float, default=9.9)
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument(
        "--width",
        type=int,
        default=64,
        help="channels of the first block; later blocks have four times as many",
    )
    parser.add_argument("--subset", type=int, help="train on this many images only")
    parser.add_argument("--padding", type=int, default=2, help="largest shift of images, in pixels")
    parser.add_argument("--cutout", type=int, default=0, help="side of a square to erase")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", choices=("float32", "float16", "bfloat16"), help="float16 on a GPU")
    parser.add_argument("--compile", action="store_true", help="torch.compile: worth it for many runs")
    options = parser.parse_args()
    cuda = options.device.startswith("cuda")
    options.dtype = options.dtype or ("float16" if cuda else "float32")
    torch.backends.cudnn.benchmark = True
    if options.cifar is not None:
        pack_cifar(options.cifar, options.train, options.test)

    speedrun = Speedrun(options)
    if cuda or options.compile:
        print(f"warm-up, not counted: {speedrun.train(options.seed, tell=False):.1f} s", flush=True)
        speedrun.test()
    seconds, accuracies = [], []
    for number in range(options.runs):
        seconds.append(speedrun.train(options.seed + number, tell=number == 0))
        started = speedrun.now()
        accuracies.append(speedrun.test())
        tested = speedrun.now() - started
        plain, mirrored, shifted = (f"{accuracy:.2%}" for accuracy in accuracies[-1])
        line = f"run {number + 1}: {seconds[-1]:.2f} s to train, {tested:.2f} s to test; accuracy {plain}, "
        print(line + f"mirrored too {mirrored}, shifted too {shifted}", flush=True)
    plain, mirrored, shifted = (spread(list(each)) for each in zip(*accuracies, strict=True))
    times = f"{statistics.mean(seconds):.2f} s to train, {min(seconds):.2f} to {max(seconds):.2f}"
    runs = "1 run" if options.runs == 1 else f"{options.runs} runs"
    print(f"{runs}: {times}; accuracy {plain}, mirrored too {mirrored}, shifted too {shifted}")
    hardware = (
        torch.cuda.get_device_name(options.device)
        if cuda
        else f"{platform.machine()}, {torch.get_num_threads()} threads"
    )
    compiled = ", compiled" if options.compile else ""
    print(f"packer {packer.__version__}, torch {torch.__version__}, {hardware}, {options.dtype}{compiled}")


if __name__ == "__main__":
    main()
