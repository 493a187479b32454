"""Writing files so that a reader never sees half of one."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from tracewords.errors import ModelError


def write_text(path: Path, text: str, field: str = "out") -> None:
    """Write a text file atomically, as UTF-8 with Unix line ends."""
    write_bytes(path, text.encode("utf-8"), field)


def write_bytes(path: Path, data: bytes, field: str = "out") -> None:
    """Write a file atomically; a folder that cannot be written is one line naming `field`."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise ModelError(field, str(path), f"a folder that can be written ({error.strerror})") from error
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.chmod(name, 0o644)
        os.replace(name, path)
    except OSError as error:
        Path(name).unlink(missing_ok=True)
        raise ModelError(field, str(path), f"a file that can be written ({error.strerror})") from error
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
