"""ResNet-50 written by hand on torch, with random weights from a seed, as a Python model for Triton.

The answers mean nothing; their time, and their agreement between devices, do. Its file is copied as ``model.py``, and
FastAPI imports it, so that both serve the same program.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

#: Of ImageNet's pixels, RGB, 0 to 255.
MEAN, DEVIATION = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)
#: Blocks and inner channels of the four stages. A block's output has four times its inner channels.
STAGES, EXPANSION, CLASSES = ((3, 64), (4, 128), (6, 256), (3, 512)), 4, 1000
SEED = 50
#: Of each block's last normalisation, so that 16 additions of random blocks stay within fp16.
RESIDUAL_GAIN = 0.25


class Block(nn.Module):  # type: ignore[misc]  # torch is on the machine with the GPU
    """A bottleneck: 1 by 1, 3 by 3, 1 by 1, and the input added."""

    def __init__(self, channels: int, inner: int, stride: int) -> None:
        super().__init__()
        outer = inner * EXPANSION
        self.steps = nn.Sequential(
            *(nn.Conv2d(channels, inner, 1, bias=False), nn.BatchNorm2d(inner), nn.ReLU(inplace=True)),
            *(
                nn.Conv2d(inner, inner, 3, stride, 1, bias=False),
                nn.BatchNorm2d(inner),
                nn.ReLU(inplace=True),
            ),
            *(nn.Conv2d(inner, outer, 1, bias=False), nn.BatchNorm2d(outer)),
        )
        nn.init.constant_(self.steps[-1].weight, RESIDUAL_GAIN)
        changes = stride > 1 or channels != outer
        self.shortcut = (
            nn.Sequential(nn.Conv2d(channels, outer, 1, stride, bias=False), nn.BatchNorm2d(outer))
            if changes
            else nn.Identity()
        )

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.shortcut(pixels) + self.steps(pixels))


class Network:
    """uint8 [n, 3, 224, 224], RGB, to logits, float32 [n, 1000]. fp16 on a GPU, fp32 on the CPU."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.type = device, torch.float16 if device.type == "cuda" else torch.float32
        torch.manual_seed(SEED)
        layers: list[nn.Module] = [
            nn.Conv2d(3, 64, 7, 2, 3, bias=False),
            nn.BatchNorm2d(64),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, 1),
        ]
        channels = 64
        for stage, (blocks, inner) in enumerate(STAGES):
            for block in range(blocks):
                layers.append(Block(channels, inner, 2 if stage and not block else 1))
                channels = inner * EXPANSION
        layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, CLASSES)]
        network = nn.Sequential(*layers).eval()
        for module in network.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        self.network = network.to(device, self.type, memory_format=torch.channels_last)
        self.mean, self.deviation = (
            torch.tensor(numbers, device=device, dtype=torch.float32).view(3, 1, 1)
            for numbers in (MEAN, DEVIATION)
        )

    def compute(self, pixels: torch.Tensor) -> torch.Tensor:
        """Run on the device, without waiting for it."""
        with torch.inference_mode():
            normalised = ((pixels.float() - self.mean) / self.deviation).to(self.type)
            logits: torch.Tensor = self.network(
                normalised.contiguous(memory_format=torch.channels_last)
            ).float()
            return logits

    def __call__(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        logits: NDArray[np.float32] = self.compute(torch.from_numpy(pixels).to(self.device)).cpu().numpy()
        return logits


class TritonPythonModel:
    """The network in Triton's Python backend: all requests of a batch at once."""

    def initialize(self, args: dict[str, str]) -> None:
        on_gpu = args["model_instance_kind"] == "GPU"
        self.network = Network(
            torch.device("cuda", int(args["model_instance_device_id"])) if on_gpu else torch.device("cpu")
        )
        self.network(np.zeros((1, 3, 224, 224), np.uint8))

    def execute(self, requests: list[Any]) -> list[Any]:
        import triton_python_backend_utils as triton

        pictures = [triton.get_input_tensor_by_name(request, "input").as_numpy() for request in requests]
        logits = self.network(np.concatenate(pictures))
        ends = np.cumsum([len(picture) for picture in pictures])[:-1]
        return [triton.InferenceResponse([triton.Tensor("logits", part)]) for part in np.split(logits, ends)]
