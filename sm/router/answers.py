"""Encode answers: results and errors as JSON, lists, CSV, arrays and pictures."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import orjson

from sm.client.csv_rows import encode_csv
from sm.client.decode_budget import DECODED, Room
from sm.client.payloads import write_npy
from sm.client.results import OPTIONS, Encoded, Picture, TableRows, encodable
from sm.client.results import dumps as dumps
from sm.errors import NotAcceptable, NotRun, Overloaded, TriremeError
from sm.http.media_types import acceptable
from sm.http.messages import CSV, JSON, JSON_LINES, NPY, PNG, Answer, strict_json
from sm.invocation import Invocation
from sm.models.canary import says_failed
from sm.router.back_pressure import finish
from sm.router.classify import OFFERS
from sm.router.request_types import Call, DispatchRequest, unencodable

#: Wrong records of a request beyond the number of right ones: 1 for so many that it may have. To say what is
#: wrong with a record takes hundreds of times what its bytes take to read, and right ones take longer.
RECORDS_PER_WRONG, MIN_WRONG = 400, 250


@dataclass(slots=True)
class EncodedRecord:
    """A record's result as encoded JSON. ``failure`` is set for a record that failed."""

    body: bytes
    failure: TriremeError | None = None
    #: The records in it, of a line that has a list: see :class:`~sm.http.messages.Answer`.
    right: int = 1
    wrong: int = 0


def write(request: DispatchRequest, result: object) -> Answer:
    """Encode the result of a single record in the type that the caller likes best of those that it can have.

    Raises:
        NotAcceptable: It can have none that the caller accepts.
        ClientFailed: It has no encoded form.
    """
    if isinstance(result, Encoded):
        is_json = result.content_type.startswith((JSON, JSON_LINES))
        body = strict_json(result.body) if is_json else result.body
        return Answer(body, result.content_type, headers=request.answer_headers)
    if request.accept != JSON:
        offers = tuple(dict.fromkeys((request.accept, *OFFERS)))
        for kind in acceptable(request.accept_header, offers):
            if kind == JSON:
                break
            encoded = _encode_as(kind, request, result)
            if encoded is not None:
                return Answer(encoded, kind, headers=request.answer_headers)
        else:
            raise NotAcceptable(
                f"the result of {request.model!r} cannot be sent as {request.accept_header[:100]!r}; "
                f"{JSON} can"
            )
    try:
        body = orjson.dumps({"modelname": request.model, "result": result}, encodable, OPTIONS)
    except (TypeError, ValueError) as error:
        raise unencodable(request.model, result) from error
    return Answer(body, headers=request.answer_headers)


def write_call(request: DispatchRequest, call: Call, kept: Iterator[object]) -> Answer:
    """Encode the answer to a request in a form of its own, from what is kept of each result."""
    room = DECODED.room()
    body = call.write(kept, request, room)
    return Answer(body, call.content_type, headers=request.answer_headers, on_sent=room.close)


class WrongLimit(NamedTuple):
    """When the rest of a request's records is not run: the answer says it in the place of each."""

    #: Wrong records that a request may have more than right ones.
    most: int
    #: Counts all its records.
    total: Callable[[], int]

    @classmethod
    def of(cls, max_records: int | None, total: Callable[[], int]) -> WrongLimit | None:
        """Return that of requests of so many records; None if they may have any number."""
        return None if max_records is None else cls(max(MIN_WRONG, max_records // RECORDS_PER_WRONG), total)


def record_encoder(request: DispatchRequest) -> Callable[[object], EncodedRecord]:
    """Return what encodes a record of a list for the answer's type."""
    return partial(encode_row, request) if request.accept == CSV else partial(encode_record, request.model)


def write_list(
    request: DispatchRequest,
    records: Iterable[EncodedRecord],
    invocation: Invocation,
    wrong_limit: WrongLimit | None = None,
) -> Answer:
    """Join encoded records to a JSON list, to JSON lines or CSV. Raises the first failure if none succeeded.

    CSV has no place for an error, so that every failure is raised.
    """
    room = DECODED.room()
    if request.accept in (JSON_LINES, CSV):
        kind, frame = request.accept, (b"\n", b"", b"", request.accept == JSON_LINES)
    else:
        kind, frame = JSON, (b",", b'{"modelname":' + dumps(request.model) + b',"result":[', b"]}", True)
    body, right, wrong = join_records(records, invocation, room, *frame, wrong_limit=wrong_limit)
    return Answer(body, kind, 200, request.answer_headers, room.close, right, wrong)


def join_records(
    records: Iterable[EncodedRecord],
    invocation: Invocation,
    room: Room,
    separator: bytes,
    start: bytes = b"",
    end: bytes = b"",
    has_errors: bool = True,
    wrong_limit: WrongLimit | None = None,
) -> tuple[bytes, int, int]:
    """Join the records' bytes, and note a failure that is not the caller's fault.

    Returns them, and how many records are right and wrong. Raises the first failure if no record succeeded,
    or if the form has no errors in it.
    """
    body, right, wrong = io.BytesIO(), 0, 0
    record: EncodedRecord | None = None
    first_failure: TriremeError | None = None
    body.write(start)
    try:
        for number, record in enumerate(records):
            if number:
                body.write(separator)
            room.grow(body.tell() + len(record.body))
            body.write(record.body)
            if record.failure is None:
                right, wrong = right + record.right, wrong + record.wrong
            elif not has_errors:
                raise record.failure
            else:
                first_failure = first_failure or record.failure
                if says_failed(record.failure.status):
                    invocation.failed_status = record.failure.status
                elif record.failure.status != Overloaded.status:  # a full box is not the caller's fault
                    wrong += record.failure.records
            if wrong_limit is not None and wrong > right + wrong_limit.most:
                if right:
                    rest = (separator + NOT_RUN) * (wrong_limit.total() - number - 1)
                    room.grow(body.tell() + len(rest))
                    body.write(rest)
                break
        if first_failure is not None and not right:
            first_failure.records = max(1, wrong)
            raise first_failure
    finally:
        finish(records)  # what has not begun does not begin
        record = first_failure = None  # its traceback has this frame, which would keep the request
    body.write(end)
    return body.getvalue(), right, wrong


def encode_record(model: str, result: object) -> EncodedRecord:
    """Encode a result as an entry of a list. Raises :class:`TriremeError` if it has no such form."""
    try:
        return EncodedRecord(dumps(result))
    except (TypeError, ValueError) as error:
        raise unencodable(model, result) from error


def encode_row(request: DispatchRequest, result: object) -> EncodedRecord:
    """Encode a result as CSV. Raises :class:`NotAcceptable` if it has no such form."""
    row = _encode_as(CSV, request, result)
    if row is None:
        raise NotAcceptable(
            f"the result of {request.model!r} has no form of one line of CSV; {JSON} has it all"
        )
    return EncodedRecord(row)


def encode_failure(error: TriremeError) -> EncodedRecord:
    """Encode the entry of a record or a line that failed."""
    # Release the frames in its traceback: hundreds of failures may wait for their turn.
    error.__traceback__ = error.__context__ = error.__cause__ = None
    return EncodedRecord(dumps(error.body()), error)


#: The entry of a record behind too many wrong ones.
NOT_RUN = encode_failure(NotRun("not run: too many records before it are wrong")).body


def _encode_as(kind: str, request: DispatchRequest, result: object) -> bytes | None:
    """Encode a result as a type other than JSON; None if it cannot be."""
    if kind == JSON_LINES:
        lines = result if isinstance(result, TableRows) else [result]
        return b"\n".join(encode_record(request.model, line).body for line in lines)
    if isinstance(result, Picture):
        return result.png() if kind == PNG else None
    if kind == CSV:
        return encode_csv(result, request.client.result)
    if kind != NPY:
        return None
    if isinstance(result, TableRows):
        result = [[*row.values()] if isinstance(row, dict) else row for row in result.values()]
    try:
        array = np.asarray(result)
    except ValueError:
        return None
    if array.dtype.kind not in "biuf":
        return None
    return write_npy(array)
