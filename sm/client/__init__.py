"""Everything that a client author imports: clients, payloads, results, pictures and preprocessing.

Names are loaded at first use: processes that handle no pictures never import OpenCV or pydantic.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sm.client.base import Array as Array
    from sm.client.base import Client as Client
    from sm.client.base import ClientTriton as ClientTriton
    from sm.client.base import ModelMetadata as ModelMetadata
    from sm.client.base import StreamingClient as StreamingClient
    from sm.client.base import TensorClient as TensorClient
    from sm.client.base import TensorMetadata as TensorMetadata
    from sm.client.base import Tensors as Tensors
    from sm.client.base import Triton as Triton
    from sm.client.embeddings import EmbeddingClient as EmbeddingClient
    from sm.client.embeddings import EmbeddingPayload as EmbeddingPayload
    from sm.client.images import decode as decode
    from sm.client.images import resize as resize
    from sm.client.images import shrink as shrink
    from sm.client.payloads import Base64Bytes as Base64Bytes
    from sm.client.payloads import ImagePayload as ImagePayload
    from sm.client.payloads import Parameters as Parameters
    from sm.client.payloads import Payload as Payload
    from sm.client.payloads import TensorPayload as TensorPayload
    from sm.client.payloads import TextPayload as TextPayload
    from sm.client.preprocessing import Preprocessing as Preprocessing
    from sm.client.results import Boxes as Boxes
    from sm.client.results import Classes as Classes
    from sm.client.results import Encoded as Encoded
    from sm.client.results import Masks as Masks
    from sm.client.results import Picture as Picture
    from sm.client.results import Table as Table
    from sm.client.results import Text as Text
    from sm.client.tensor_roles import ImageInput as ImageInput
    from sm.client.tensor_roles import UnsuitableModel as UnsuitableModel
    from sm.client.tensor_roles import find_image as find_image
    from sm.client.tensor_roles import find_output as find_output
    from sm.client.tensor_roles import label_file as label_file

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
__all__ = [name for names in _MODULES.values() for name in names.split()]


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names.split():
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
