"""``manifest.json``: source, tool, GPU and accuracy of a built model.

It lies in the version folder, beside the artifact that it is about: each version may have been built
elsewhere. Triton does not look at it.
"""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from sm.hardware import Gpu, Hardware

NAME = "manifest.json"
Target = Literal["cpu", "onnxruntime", "tensorrt"]
Precision = Literal["fp32", "fp16", "bf16", "int8"]
#: What was changed in the source's graph: pixels as its input, boxes suppressed in it, masks' words alone.
Change = Literal["uint8", "nms", "masks"]


class Part(BaseModel):
    """A manifest is written once and read by later versions: an unknown field is an error, not a surprise."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Source(Part):
    """The ONNX graph that the artifact was made from, and what that was made from."""

    name: str
    sha256: str = Field(pattern="^[0-9a-f]{64}$")


class Tool(Part):
    """What built the artifact, or runs it: ``onnxruntime`` or ``TensorRT``."""

    name: str
    version: str


class Accuracy(Part):
    """The artifact's outputs against its source's, absolute, over random inputs of these sizes."""

    max_error: float
    mean_error: float
    #: What was compared: batch sizes such as ``3``, and lengths where they are free, ``3x128``.
    sizes: tuple[str, ...]
    #: Of the model's client, where it has samples: how many it answers alike, of how many.
    samples: tuple[int, int] | None = None

    def __str__(self) -> str:
        alike = f", {self.samples[0]} of {self.samples[1]} samples answered alike" if self.samples else ""
        return (
            f"differs by at most {self.max_error:.2g} (mean {self.mean_error:.2g}) "
            f"over inputs of {', '.join(self.sizes)}{alike}"
        )


class GpuPart(Part):
    name: str
    compute_capability: str


class Profile(Part):
    """The shapes of one input that a plan was built for."""

    input: str
    minimum: tuple[int, ...]
    optimum: tuple[int, ...]
    maximum: tuple[int, ...]


class Manifest(Part):
    """``gpu`` and ``profiles`` are of plans alone; ``accuracy`` is None where nothing was compared."""

    model: str
    target: Target
    source: Source
    tool: Tool
    precision: Precision = "fp32"
    changes: tuple[Change, ...] = ()
    gpu: GpuPart | None = None
    profiles: tuple[Profile, ...] = ()
    #: Whether a plan has its types from the graph.
    strongly_typed: bool = True
    #: How long a plan took to build: what a start that builds it again says it will take.
    seconds: float | None = None
    built: AwareDatetime
    accuracy: Accuracy | None = None

    def write(self, folder: Path) -> None:
        """Into a version folder."""
        (folder / NAME).write_text(self.model_dump_json(indent=2) + "\n")

    @classmethod
    def read(cls, folder: Path) -> Manifest | None:
        """The manifest of a version folder, None if there is none; ValueError says what is wrong in it."""
        path = folder / NAME
        try:
            return cls.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            return None
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"])) or "the file"
            raise ValueError(f"{path} cannot be read: {place}: {first['msg']}.") from None
        except OSError as error:
            raise ValueError(f"{path} cannot be read: {error.strerror}.") from None

    def find_misfit(self, hardware: Hardware) -> str | None:
        """Why this plan cannot run here and what to do, in a sentence; None if it can."""
        if self.target != "tensorrt" or self.gpu is None:
            return None
        version = hardware.tensorrt
        fits = self.gpu.compute_capability in hardware.capabilities
        if fits and (version is None or _same(self.tool.version, version)):
            return None
        built, here = _told_apart(self.tool.version, version)
        return (
            f"{self.model}'s plan was built for compute capability {self.gpu.compute_capability} with "
            f"TensorRT {built}; this box has {_has(hardware, here)}. "
            f"Rebuild: sm build-model {self.model} --target tensorrt, "
            "or start with TRIREME_BUILD_ENGINES=missing."
        )


def now() -> datetime:
    """To the second, UTC."""
    return datetime.now(timezone.utc).replace(microsecond=0)


def of(gpu: Gpu) -> GpuPart:
    return GpuPart(name=gpu.name, compute_capability=gpu.compute_capability)


def _has(hardware: Hardware, version: str) -> str:
    if not hardware.gpus:
        return "no GPU"
    return " and ".join([*hardware.capabilities, version] if version else hardware.capabilities)


def _numbers(version: str) -> list[str]:
    return version.split(".")[:3]


def _same(built: str, here: str) -> bool:
    """By default a plan runs with the very version that built it; as far as both are written down."""
    return all(a == b for a, b in zip(_numbers(built), _numbers(here), strict=False))


def _told_apart(built: str, here: str | None) -> tuple[str, str]:
    """Both versions, no longer than it takes to see the difference."""
    if here is None or _numbers(built)[:2] != _numbers(here)[:2]:
        return tuple(".".join(_numbers(each or "")[:2]) for each in (built, here))  # type: ignore[return-value]
    return built, here
