"""What only the gateway can fail with; everything else is in :mod:`sm.errors`."""

from __future__ import annotations

from sm.errors import NotFound, TriremeError, UnknownModel


class NoSuchModel(UnknownModel):
    """No such model or version: the answer lists what there is. 400, as this API's callers know it."""

    status = 400


class NoSuchObject(NotFound):
    """The bucket has no object of that key."""

    code = "no_such_object"


class Unauthorized(TriremeError):
    """The request brings no key."""

    status, code = 401, "unauthorized"


class StorageFailed(TriremeError):
    """S3 refuses the gateway what it needs: nothing that the caller could do otherwise."""

    status, code = 502, "storage_failed"
