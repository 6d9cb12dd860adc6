"""The contestants by name. Each has its own module, imported when it is needed."""

from __future__ import annotations

from importlib import import_module

from bench.contestant import Contestant
from sm.errors import CommandError

#: Module and class. The order is that of the tables.
CONTESTANTS = {
    "trireme": "trireme:Trireme",
    "trireme_fp32": "trireme:Fp32",
    "trireme_same": "trireme:Same",
    "trireme_one": "trireme:One",
    "reference": "reference:Reference",
    "fastapi": "fastapi:FastApi",
    "fastapi_openvino": "fastapi:OnOpenVino",
    "litserve": "litserve:LitServe",
    "bentoml": "bentoml:BentoMl",
    "mlserver": "mlserver:MlServer",
    "mlserver_one": "mlserver:OneProcess",
    "triton": "triton:SharedMemory",
    "loop": "loop:Loop",
}
#: Those that run the models in their own processes, each an ordinary service, on ONNX Runtime in fp32.
PEERS = ("fastapi", "litserve", "bentoml", "mlserver", "mlserver_one")


def find(name: str) -> type[Contestant]:
    """Return the class of a contestant; an unknown name raises :class:`CommandError`, which lists them."""
    if name not in CONTESTANTS:
        raise CommandError(f"there is no contestant {name!r}; there are {', '.join(CONTESTANTS)}.")
    module, _, kind = CONTESTANTS[name].partition(":")
    return getattr(import_module(f"bench.contestants.{module}"), kind)  # type: ignore[no-any-return]
