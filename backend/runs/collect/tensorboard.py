"""Reads the scalars of a TensorBoard event file, which TensorFlow, torch and Megatron-LM write.

A file is a row of TFRecords: length (8 bytes, little endian), CRC of the length, data, CRC of the data (tensorboard
2.21.0, tensorboard/summary/writer/record_writer.py). The data is a protobuf message `Event`; the numbers of its fields
are in tensorboard/compat/proto/{event,summary,tensor}.proto. Histograms, images and texts are passed over.
"""

import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

from backend.cluster.typed_json import read
from backend.runs.collect.node_records import Bad, Step

MOST_RECORD_BYTES = 256 << 10
"""A longer record is passed over: the scalars of one step take much less."""
MOST_SCALARS = 512
"""Scalars that are taken from one record."""
_HEAD, _CRC = 12, 4
_FLOAT = 1  # DataType.DT_FLOAT
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class Records(NamedTuple):
    """What was read from a part of a file."""

    rows: list[dict[str, Any]]
    """{step, time, metrics} of each step, in the order of the file."""
    used: int
    """Bytes up to the first record that is not complete; more than were given if a long record is passed over."""
    bad: Bad


def read_events(data: bytes, offset: int) -> Records:
    """Return the scalars in the bytes of a file from `offset`, the begin of a record."""
    rows: dict[int, dict[str, Any]] = {}
    count, first, why, at = 0, "", "", 0
    while at + _HEAD <= len(data):
        (length,), (crc,) = struct.unpack_from("<Q", data, at), struct.unpack_from("<I", data, at + 8)
        if crc != _masked_crc(data[at : at + 8]):
            # Nothing tells where the next record begins.
            count, first, why, at = count + 1, first or f"byte {offset + at}", why or "no TFRecord", len(data)
            break
        end = at + _HEAD + length + _CRC
        if length <= MOST_RECORD_BYTES:
            if end > len(data):
                break
            try:
                _add(rows, data[at + _HEAD : end - _CRC])
            except (ValueError, struct.error) as error:
                count, first, why = count + 1, first or f"byte {offset + at}", why or str(error)[:200]
        at = end
    return Records(list(rows.values()), at, Bad(count, first, why))


def _add(rows: dict[int, dict[str, Any]], event: bytes) -> None:
    time, step, summary = 0.0, 0, b""
    for field, value in _fields(event):
        if field == 1 and isinstance(value, bytes) and len(value) == 8:
            (time,) = struct.unpack("<d", value)
        elif field == 2 and isinstance(value, int):
            step = value
        elif field == 5 and isinstance(value, bytes):
            summary = value
    metrics = dict(_scalars(summary))
    if not metrics:
        return
    row, faults = read(Step, {"step": step, "time": time, "metrics": metrics})
    if row is None:
        raise ValueError(faults[0] if faults else "no step")
    known = rows.setdefault(row["step"], {"step": row["step"], "time": row["time"], "metrics": {}})
    known["metrics"] |= row.get("metrics", {})


def _scalars(summary: bytes) -> Iterator[tuple[str, float]]:
    for number, (field, value) in enumerate(_fields(summary)):
        if number >= MOST_SCALARS:
            return
        if field != 1 or not isinstance(value, bytes):
            continue
        tag, scalar = "", None
        for inner, content in _fields(value):
            if inner == 1 and isinstance(content, bytes):
                tag = content[:400].decode("utf-8", "replace")
            elif inner == 2 and isinstance(content, bytes) and len(content) == 4:
                (scalar,) = struct.unpack("<f", content)
            elif inner == 8 and isinstance(content, bytes):
                scalar = _of_tensor(content)
        if tag and scalar is not None:
            yield tag, scalar


def _of_tensor(tensor: bytes) -> float | None:
    """Return the number of a tensor of one float, as TensorFlow 2 writes scalars; None for other tensors."""
    fields = dict(_fields(tensor))
    content = fields.get(4) or fields.get(5)
    if fields.get(1) != _FLOAT or not isinstance(content, bytes) or len(content) != 4:
        return None
    return float(struct.unpack("<f", content)[0])


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield (number, value) of the fields of a message. Raises ValueError if it is none.

    https://protobuf.dev/programming-guides/encoding/
    """
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        kind = key & 7
        if kind == _VARINT:
            value, at = _varint(message, at)
            yield key >> 3, value
            continue
        if kind == _BYTES:
            size, at = _varint(message, at)
        elif kind in (_FIXED64, _FIXED32):
            size = 8 if kind == _FIXED64 else 4
        else:
            raise ValueError(f"wire type {kind}")
        if size > len(message) - at:
            raise ValueError("a field is longer than its message")
        yield key >> 3, message[at : at + size]
        at += size


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(message):
            raise ValueError("a number is cut")
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError("a number is too long")


def _masked_crc(data: bytes) -> int:
    """Return the masked CRC-32C of a record's length (Castagnoli's polynomial, reflected)."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
