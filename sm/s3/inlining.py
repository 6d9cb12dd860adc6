"""``{"s3_uri": …}`` in a record becomes what the object holds."""

from __future__ import annotations

from typing import Any

from sm.errors import Forbidden
from sm.payloads import Payload
from sm.s3.address import URI
from sm.s3.store import Store

OFF = "this box reads and writes no S3: TRIREME_S3_BUCKETS names no bucket"


def inlined(kind: type[Payload], record: Any, path: str, store: Store | None) -> Any:
    """``record`` with its main field's data in place of an address; any other record as it is.

    As with inline data, ``{"s3_uri": …}`` alone stands for the payload with that main field.
    """
    field = kind.main_field
    if field is None or not isinstance(record, dict):
        return record
    if record.keys() == {URI} and URI not in kind.model_fields:
        record = {field: record}
    if not _refers(record.get(field)):
        return record
    if store is None:
        raise Forbidden(f"{path}.{field}: {OFF}")
    place = store.at(record[field][URI], f"{path}.{field}.{URI}")
    return {**record, **kind.fields_of_raw(store.read(place))}


def _refers(value: object) -> bool:
    return isinstance(value, dict) and value.keys() == {URI}
