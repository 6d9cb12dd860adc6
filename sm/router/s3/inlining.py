"""Replace ``{"s3_uri": …}`` in a record by the content of the object."""

from __future__ import annotations

from typing import Any

from sm.client.payloads import Payload
from sm.errors import Forbidden
from sm.router.s3.store import Store
from sm.router.s3.uris import URI

S3_OFF = "this box reads and writes no S3: TRIREME_S3_BUCKETS names no bucket"


def inline_objects(kind: type[Payload], record: Any, path: str, store: Store | None) -> Any:
    """Replace an address in ``record``'s main field by the object's data; other records are unchanged.

    The record may also be ``{"s3_uri": …}`` alone, as it may be a string of base64 alone.

    Args:
        kind: The client's payload.
        record: From the caller.
        path: The record's place in the request, for errors.
        store: Reads objects; None if S3 is off.

    Raises:
        Forbidden: S3 is off, or the address is not allowed.
        WrongPayload: The address is invalid.
    """
    field = kind.main_field
    if field is None or not isinstance(record, dict):
        return record
    if record.keys() == {URI} and URI not in kind.model_fields:
        record = {field: record}
    name = next((name for name in kind.names_of(field) if _is_address(record.get(name))), None)
    if name is None:
        return record
    if store is None:
        raise Forbidden(f"{path}.{name}: {S3_OFF}")
    address = store.parse_address(record[name][URI], f"{path}.{name}.{URI}")
    fields = kind.fields_of_raw(store.read(address))
    # Keep the caller's key, so that a caller who sent the field under two names gets the error.
    return {**record, **{name if key == field else key: value for key, value in fields.items()}}


def _is_address(value: object) -> bool:
    return isinstance(value, dict) and value.keys() == {URI}
