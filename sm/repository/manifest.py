"""``manifest.json``: source, tool, GPU and accuracy of a built model.

It lies in the version folder, as each version may have been built elsewhere. Triton ignores the file.
"""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from sm.hardware import Gpu, Hardware

NAME = "manifest.json"
Target = Literal["cpu", "onnxruntime", "tensorrt", "torch"]
Precision = Literal["fp32", "fp16", "bf16", "int8"]
#: Changes of the source's graph: pixels as input, suppressed boxes, predictions for masks only.
Change = Literal["uint8", "nms", "masks"]


class Part(BaseModel):
    """Base of the manifest's parts. Later versions read old manifests, so an unknown field is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Source(Part):
    """The ONNX graph that the artifact was made from, and what that was made from."""

    name: str
    sha256: str = Field(pattern="^[0-9a-f]{64}$")


class Tool(Part):
    """What built or runs the artifact: ``onnxruntime``, ``TensorRT`` or ``torch``."""

    name: str
    version: str


class Accuracy(Part):
    """Absolute differences between the artifact's and its source's outputs, over random inputs of
    ``sizes``.
    """

    max_error: float
    mean_error: float
    #: Batch sizes such as ``3``; with free lengths, ``3x128``.
    sizes: tuple[str, ...]
    #: How many of the client's samples get the same answer, and how many there are; None without samples.
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
    """``gpu`` and ``profiles`` are set for plans only; ``accuracy`` is None if nothing was compared."""

    model: str
    target: Target
    source: Source
    tool: Tool
    precision: Precision = "fp32"
    changes: tuple[Change, ...] = ()
    gpu: GpuPart | None = None
    profiles: tuple[Profile, ...] = ()
    #: True if the plan's types come from the graph.
    strongly_typed: bool = True
    #: Seconds the build took, to announce how long a rebuild at start will take.
    seconds: float | None = None
    built: AwareDatetime
    accuracy: Accuracy | None = None
    #: What a reader should know before using the model, a sentence each.
    warnings: tuple[str, ...] = ()

    def write(self, folder: Path) -> None:
        """Write the manifest into a version folder."""
        (folder / NAME).write_text(self.model_dump_json(indent=2) + "\n")

    @classmethod
    def read(cls, folder: Path) -> Manifest | None:
        """Read the manifest of a version folder; None if there is none. Raises ValueError with the fault."""
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
        """Explain in a sentence why a plan cannot run here and what to do; None if it can."""
        if self.target != "tensorrt" or self.gpu is None:
            return None
        version = hardware.tensorrt
        fits = self.gpu.compute_capability in hardware.capabilities
        if fits and (version is None or _same(self.tool.version, version)):
            return None
        built, available = _told_apart(self.tool.version, version)
        return (
            f"{self.model}'s plan was built for compute capability {self.gpu.compute_capability} with "
            f"TensorRT {built}; this box has {_has(hardware, available)}. "
            f"Rebuild: sm build-model {self.model} --target tensorrt, "
            "or start with TRIREME_BUILD_ENGINES=missing."
        )


def now() -> datetime:
    """Return the time in UTC, to the second."""
    return datetime.now(timezone.utc).replace(microsecond=0)


def of(gpu: Gpu) -> GpuPart:
    return GpuPart(name=gpu.name, compute_capability=gpu.compute_capability)


def _has(hardware: Hardware, version: str) -> str:
    if not hardware.gpus:
        return "no GPU"
    return " and ".join([*hardware.capabilities, version] if version else hardware.capabilities)


def _numbers(version: str) -> list[str]:
    return version.split(".")[:3]


def _same(built: str, available: str) -> bool:
    """True if the versions agree, as far as both are known: a plan runs only with the version that
    built it.
    """
    return all(a == b for a, b in zip(_numbers(built), _numbers(available), strict=False))


def _told_apart(built: str, available: str | None) -> tuple[str, str]:
    """Return both versions, shortened to the first difference."""
    if available is None or _numbers(built)[:2] != _numbers(available)[:2]:
        return tuple(".".join(_numbers(text or "")[:2]) for text in (built, available))  # type: ignore[return-value]
    return built, available
