"""The contestants by name."""

from __future__ import annotations

from bench.contestant import Contestant
from bench.contestants import floors, peers, reference, trireme

#: The order is that of the tables.
CONTESTANTS: dict[str, type[Contestant]] = {
    contestant.name: contestant
    for contestant in (
        *(trireme.Trireme, trireme.Fp32, trireme.Same, trireme.Before, trireme.One, reference.Reference),
        *(peers.FastApi, peers.OnOpenVino, peers.LitServe, peers.BentoMl, peers.MlServer, peers.OneProcess),
        *(floors.SharedMemory, floors.Loop),
    )
}
#: Those that run the models in their own processes, each an ordinary service, on ONNX Runtime in fp32.
PEERS = ("fastapi", "litserve", "bentoml", "mlserver", "mlserver_one")
