"""Plain data, such as a TOML file's, to the parts of a model and back; unknown keys are refused by name."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from tracewords.derive.formula import refuse
from tracewords.derive.losses import LOSSES, Loss
from tracewords.derive.parametrisation import PARAMETRISATIONS, Parametrisation
from tracewords.errors import ModelError


def path(where: str, key: Any) -> str:
    """The field of a key, on one line whatever the key."""
    shown = key if isinstance(key, str) and re.fullmatch(r"[\w-]{1,40}", key) else repr(key)[:40]
    return f"{where}.{shown}" if where else shown


def keys(data: Any, where: str, required: Sequence[str], optional: Sequence[str]) -> dict[str, Any]:
    """The entries of a table whose keys are known."""
    known = ", ".join((*required, *optional))
    if not isinstance(data, Mapping):
        raise refuse(where or "model", data, f"a table of {known}")
    for key in data:
        if key not in (*required, *optional):
            raise refuse(path(where, key), data[key], f"the keys {known}")
    for key in required:
        if key not in data:
            raise refuse(path(where, key), None, f"a value; the keys {', '.join(required)} must be there")
    return dict(data)


def read_loss(data: Any) -> Loss:
    kind = data.get("kind") if isinstance(data, Mapping) else data
    if not isinstance(kind, str) or kind not in LOSSES:
        raise refuse("loss.kind", kind, f"one of {', '.join(LOSSES)}")
    loss = LOSSES[kind]
    # A field with a default is an attribute of the class.
    required = [key for key, attribute in loss.keys.items() if not hasattr(loss, attribute)]
    table = keys(data, "loss", ("kind", *required), [key for key in loss.keys if key not in required])
    return loss(**{loss.keys[key]: value for key, value in table.items() if key != "kind"})


def read_matrices(data: Any, role: str) -> dict[str, Parametrisation]:
    if not isinstance(data, Mapping):
        raise refuse(role, data, "a table of matrices")
    result = {}
    for name, entry in data.items():
        where = path(role, name)
        table = keys(entry, where, ("parametrisation",), ("rank_ratio", "initial"))
        kind = table.pop("parametrisation")
        if not isinstance(kind, str) or kind not in PARAMETRISATIONS:
            raise refuse(f"{where}.parametrisation", kind, f"one of {', '.join(PARAMETRISATIONS)}")
        try:
            result[name] = PARAMETRISATIONS[kind](**table)
        except ModelError as error:
            raise ModelError(f"{where}.{error.field}", error.value, error.accepted) from None
    return result


def toml(data: Mapping[str, Any], where: str) -> list[str]:
    """Lines of a table: plain values first, then the tables inside it."""

    def text(value: Any) -> str:
        if isinstance(value, str):  # TOML escapes like JSON, and DEL besides
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        return f"[{', '.join(map(text, value))}]" if isinstance(value, list) else repr(value)

    names = {k: k if re.fullmatch(r"[\w-]+", k, re.ASCII) else text(k) for k in data}
    inner = {k: v for k, v in data.items() if isinstance(v, Mapping)}
    lines = [f"{names[k]} = {text(v)}" for k, v in data.items() if k not in inner]
    for key, value in inner.items():
        path = f"{where}.{names[key]}" if where else names[key]
        header = [] if value and all(isinstance(v, Mapping) for v in value.values()) else ["", f"[{path}]"]
        lines += [*header, *toml(value, path)]
    return lines
