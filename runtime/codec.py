"""Frozen records to JSON values and back, by their type annotations.

Owns the check that a JSON value has the shape a record declares. Refuses to know files and what the records mean.
"""

from __future__ import annotations

import dataclasses
import enum
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

Record = TypeVar("Record")


class DecodeError(ValueError):
    """A JSON value that does not have the declared shape. The text says where and why."""


def encode(value: Any) -> Any:
    """Give a record as JSON values: dataclasses become objects, tuples lists, enum members their value."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        names.sort(key=lambda name: name != "schema_version")  # first, for whoever looks at a file
        return {name: encode(getattr(value, name)) for name in names}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, list | tuple):
        return [encode(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): encode(item) for key, item in value.items()}
    return value


def decode(kind: type[Record], data: Any, where: str = "") -> Record:
    """Build the record `kind` from JSON values.

    Unknown keys are ignored, so that an older reader survives a newer file. Raises DecodeError naming the key for
    anything that is missing or of another type.
    """
    return typing.cast(Record, _decode(kind, data, where))


def _decode(kind: Any, data: Any, where: str) -> Any:
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        return _decode_union(kind, data, where)
    if origin is tuple:
        item_kind = typing.get_args(kind)[0]
        items = _expect(list, data, where)
        return tuple(_decode(item_kind, item, f"{where}[{index}]") for index, item in enumerate(items))
    if origin in (dict, Mapping):
        value_kind = typing.get_args(kind)[1]
        return {key: _decode(value_kind, item, f"{where}.{key}") for key, item in _expect(dict, data, where).items()}
    if dataclasses.is_dataclass(kind):
        return _decode_record(kind, data, where)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        try:
            return kind(data)
        except ValueError:
            raise DecodeError(f"{where or 'value'}: {data!r} is not one of {[m.value for m in kind]}") from None
    if kind is float:
        return float(_expect((int, float), data, where))
    return _expect(kind, data, where)


def _decode_union(kind: Any, data: Any, where: str) -> Any:
    options = [option for option in typing.get_args(kind) if option is not type(None)]
    if data is None and len(options) < len(typing.get_args(kind)):
        return None
    return _decode(options[0], data, where)


def _decode_record(kind: Any, data: Any, where: str) -> Any:
    table = _expect(dict, data, where)
    hints = typing.get_type_hints(kind)
    values = {}
    for field in dataclasses.fields(kind):
        at = f"{where}.{field.name}" if where else field.name
        if field.name in table:
            values[field.name] = _decode(hints[field.name], table[field.name], at)
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise DecodeError(f"{at}: missing")
    return kind(**values)


def _expect(kind: Any, data: Any, where: str) -> Any:
    if not isinstance(data, kind) or (isinstance(data, bool) and kind is not bool):
        name = kind.__name__ if isinstance(kind, type) else " or ".join(one.__name__ for one in kind)
        raise DecodeError(f"{where or 'value'}: expected {name}, found {data!r}")
    return data
