"""Load for a Triton alone: callers whose tensors are prepared beforehand.

    python -m bench.callers PORT MODEL FILES CALLERS SECONDS

Messages are made once; each caller has a region of shared memory of its own.
"""

from __future__ import annotations

import mmap
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from numpy.typing import NDArray
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

from bench.contestant import PROCESSES
from bench.driver import SHARED, sweep
from bench.together import Step, report
from sm.triton.tensors import datatype

Tensors = Mapping[str, NDArray[Any]]
#: Bytes of an output that are compared: comparing 8.6 MB each time would dominate the measurement.
COMPARED_BYTES = 64
UNBOUNDED = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))


def main(port: int, model: str, files: Path, callers: int, seconds: float) -> None:
    inputs, outputs = (load(files / part / f"{model}.npz") for part in ("inputs", "outputs"))

    def steps(count: int) -> list[Step]:
        channel = grpc.insecure_channel(f"127.0.0.1:{port}", UNBOUNDED)
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        return [shared(stub, model, inputs, outputs, place) for place in range(count)]

    processes = min(PROCESSES, callers)
    try:
        report(steps, [len(range(place, callers, processes)) for place in range(processes)], seconds)
    finally:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            # Without a name it unregisters all regions, which Triton would keep until it ends.
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            stub.SystemSharedMemoryUnregister(pb.SystemSharedMemoryUnregisterRequest())
        sweep(os.getpid())


def load(file: Path) -> Tensors:
    with np.load(file) as tensors:
        return dict(tensors)


def shared(stub: Any, model: str, inputs: Tensors, outputs: Tensors, place: int) -> Step:
    """Use a shared-memory region of this caller: inputs are written once, outputs every time."""
    path = SHARED / f"bench-{os.getppid()}-{os.getpid()}-{place}"
    size = sum(array.nbytes for array in (*inputs.values(), *outputs.values()))
    with path.open("w+b") as file:
        file.truncate(size)
        memory = mmap.mmap(file.fileno(), size)
    stub.SystemSharedMemoryRegister(
        pb.SystemSharedMemoryRegisterRequest(name=path.name, key=f"/{path.name}", offset=0, byte_size=size)
    )
    message, offset, places = request(model, inputs), 0, {}
    for tensor, array in zip(message.inputs, inputs.values(), strict=True):
        memory[offset : offset + array.nbytes] = array.tobytes()
        refer(tensor, path.name, offset, array.nbytes)
        offset += array.nbytes
    for name, array in outputs.items():
        refer(message.outputs.add(name=name), path.name, offset, array.nbytes)
        places[name], offset = offset, offset + array.nbytes

    def step() -> bool:
        for start in places.values():
            memory[start : start + COMPARED_BYTES] = bytes(COMPARED_BYTES)
        stub.ModelInfer(message)
        return all(
            matches(memory[places[name] : places[name] + COMPARED_BYTES], array)
            for name, array in outputs.items()
        )

    return step


def request(model: str, inputs: Tensors) -> Any:
    message = pb.ModelInferRequest(model_name=model)
    for name, array in inputs.items():
        message.inputs.add(name=name, datatype=datatype(array), shape=array.shape)
    return message


def refer(tensor: Any, region: str, offset: int, size: int) -> None:
    tensor.parameters["shared_memory_region"].string_param = region
    tensor.parameters["shared_memory_byte_size"].int64_param = size
    tensor.parameters["shared_memory_offset"].int64_param = offset


def matches(raw: bytes, array: NDArray[Any]) -> bool:
    """True if the first bytes are those of ``array``; a real model's values differ in the last digits."""
    values = np.frombuffer(raw[:COMPARED_BYTES], array.dtype)
    return bool(np.allclose(values, array.ravel()[: len(values)], rtol=1e-2, atol=1e-2))


if __name__ == "__main__":
    _, port, model, files, callers, seconds = sys.argv
    main(int(port), model, Path(files), int(callers), float(seconds))
