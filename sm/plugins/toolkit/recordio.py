"""Read RecordIO with SageMaker's protobuf records, as XGBoost's container does.

A body is a sequence of records, each with a magic number, its length, and zeros up to a multiple of four. A
record has its features as ``features["values"]``: values alone, or values with their columns (``keys``).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError, Message

from sm.client.decode_budget import DECODED
from sm.errors import BadInput
from sm.plugins.toolkit.libsvm import MAX_INDEX, Rows

RECORDIO = "application/x-recordio-protobuf"
MAGIC = 0xCED7230A
HEADER = struct.Struct("<II")
#: Types of tensors: the field number in a record's value, and the element type.
TENSORS = {
    "float32_tensor": (2, descriptor_pb2.FieldDescriptorProto.TYPE_FLOAT),
    "float64_tensor": (3, descriptor_pb2.FieldDescriptorProto.TYPE_DOUBLE),
    "int32_tensor": (7, descriptor_pb2.FieldDescriptorProto.TYPE_INT32),
}
FEATURES = "values"
#: The memory that a body's numbers may take, in multiples of its size: a small integer takes one byte of it.
MAX_GROWTH = 24


def read(body: bytes) -> Rows:
    """Return the rows, without labels. Raises :class:`BadInput`."""
    with DECODED.reserve(MAX_GROWTH * len(body)):
        values: list[Any] = []
        keys: list[Any] = []
        starts = [0]
        record_class = _record_class()
        for number, data in enumerate(_records(body), 1):
            record: Any = record_class()
            try:
                record.ParseFromString(data)
            except DecodeError:
                raise BadInput(f"record {number} of the body is not a protobuf record") from None
            row, columns = _row(record, number)
            values.append(row)
            keys.append(columns)
            starts.append(starts[-1] + len(row))
        if not values:
            raise BadInput("the body has no record")
        return Rows(np.concatenate(values), np.concatenate(keys), np.array(starts, np.int64))


def _records(body: bytes) -> Iterator[bytes]:
    offset, number = 0, 0
    while offset < len(body):
        number += 1
        if offset + HEADER.size > len(body):
            raise BadInput(f"record {number} of the body is truncated")
        magic, length = HEADER.unpack_from(body, offset)
        if magic != MAGIC:
            raise BadInput(f"record {number} of the body does not begin as RecordIO does")
        offset += HEADER.size
        if offset + length > len(body):
            raise BadInput(f"record {number} of the body is truncated")
        yield body[offset : offset + length]
        offset += length + -length % 4


def _row(record: Any, number: int) -> tuple[Any, Any]:
    value = record.features.get(FEATURES, None)
    name = next((name for name in TENSORS if value is not None and value.HasField(name)), "")
    if not name:
        raise BadInput(f"record {number} of the body has no features called {FEATURES!r}")
    tensor = getattr(value, name)
    row = np.array(tensor.values, np.float32)
    columns = np.array(tensor.keys, np.uint64) if tensor.keys else np.arange(len(row), dtype=np.uint64)
    if len(columns) != len(row) or (len(columns) and columns.max() > MAX_INDEX):
        raise BadInput(f"the keys of record {number} of the body do not fit its values")
    return row, columns.astype(np.int32)


@cache
def _record_class() -> type[Message]:
    """Return the protobuf class for the part of the record's schema that is needed."""
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="trireme/recordio.proto", package="trireme.recordio", syntax="proto2"
    )

    def add_field(message: Any, name: str, number: int, kind: int, label: int, of: str = "") -> None:
        type_name = f".trireme.recordio.{of}" if of else None
        message.field.add(name=name, number=number, type=kind, label=label, type_name=type_name)

    value = file.message_type.add(name="Value")
    for name, (number, kind) in TENSORS.items():
        tensor = file.message_type.add(name=name)
        add_field(tensor, "values", 1, kind, field.LABEL_REPEATED)
        add_field(tensor, "keys", 2, field.TYPE_UINT64, field.LABEL_REPEATED)
        add_field(value, name, number, field.TYPE_MESSAGE, field.LABEL_OPTIONAL, name)
    record = file.message_type.add(name="Record")
    entry = record.nested_type.add(name="FeaturesEntry")
    entry.options.map_entry = True
    add_field(entry, "key", 1, field.TYPE_STRING, field.LABEL_OPTIONAL)
    add_field(entry, "value", 2, field.TYPE_MESSAGE, field.LABEL_OPTIONAL, "Value")
    add_field(record, "features", 1, field.TYPE_MESSAGE, field.LABEL_REPEATED, "Record.FeaturesEntry")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("trireme.recordio.Record"))
