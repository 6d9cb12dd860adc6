"""Everything that a client author imports: clients, payloads, results, pictures and preprocessing.

Names are loaded at first use: processes that handle no pictures never import OpenCV or pydantic.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sm.client.base import (
        Array,
        Client,
        ClientTriton,
        ModelMetadata,
        StreamingClient,
        TensorClient,
        TensorMetadata,
        Tensors,
        Triton,
    )
    from sm.client.embeddings import EmbeddingClient, EmbeddingPayload
    from sm.client.images import decode, resize, shrink
    from sm.client.payloads import Base64Bytes, ImagePayload, Parameters, Payload, TensorPayload, TextPayload
    from sm.client.preprocessing import Preprocessing
    from sm.client.results import Boxes, Classes, Encoded, Masks, Picture, Table, Text
    from sm.client.tensor_roles import ImageInput, UnsuitableModel, find_image, find_output, label_file

__all__ = [
    "Array",
    "Base64Bytes",
    "Boxes",
    "Classes",
    "Client",
    "ClientTriton",
    "EmbeddingClient",
    "EmbeddingPayload",
    "Encoded",
    "ImageInput",
    "ImagePayload",
    "Masks",
    "ModelMetadata",
    "Parameters",
    "Payload",
    "Picture",
    "Preprocessing",
    "StreamingClient",
    "Table",
    "TensorClient",
    "TensorMetadata",
    "TensorPayload",
    "Tensors",
    "Text",
    "TextPayload",
    "Triton",
    "UnsuitableModel",
    "decode",
    "find_image",
    "find_output",
    "label_file",
    "resize",
    "shrink",
]

#: Where the names are.
_MODULES = {
    "base": "Array Client ClientTriton ModelMetadata StreamingClient TensorClient TensorMetadata Tensors "
    "Triton",
    "embeddings": "EmbeddingClient EmbeddingPayload",
    "images": "decode resize shrink",
    "payloads": "Base64Bytes ImagePayload Parameters Payload TensorPayload TextPayload",
    "preprocessing": "Preprocessing",
    "results": "Boxes Classes Encoded Masks Picture Table Text",
    "tensor_roles": "ImageInput UnsuitableModel find_image find_output label_file",
}


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names.split():
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
