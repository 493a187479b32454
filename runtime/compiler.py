"""Compiling kernels: build once into the user's cache.

The cache holds, for each key, ``<key>.so`` and ``<key>.sha256``, the digest of the key and the library's
bytes.  An entry whose digest does not match (half-written, foreign, renamed) is a miss and is built again.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import hashlib
import os
import platform
import shlex
import shutil
import stat
import subprocess
import tempfile
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from platformdirs import user_cache_path

from tracewords import __version__
from tracewords.errors import KernelError

ABI = 1  # of the exported functions; TRACEWORDS_ABI in batch.c.j2
BUILD_TIMEOUT = 600.0  # seconds, for one compiler run and for waiting on another process's build

# Of fast-math only what is safe: fused multiply-add, no errno from sqrt.  NaN keeps its meaning.
_TARGET = "-mcpu=native" if platform.machine() in ("arm64", "aarch64") else "-march=native"
DEFAULT_FLAGS = ("-std=c11", "-O3", _TARGET, "-ffp-contract=fast", "-fno-math-errno", "-Wno-psabi")
_LINK_FLAGS = ("-fPIC", "-shared")

_warned: set[str] = set()


def warn_once(message: str) -> None:
    """Warn with this text, once per process."""
    if message not in _warned:
        _warned.add(message)
        warnings.warn(message, UserWarning, stacklevel=2)


# --- compiler and key ---------------------------------------------------------


def _run(command: Sequence[str], cwd: Path | None = None) -> tuple[int, str]:
    """Exit status of a command (an argument list, never a shell line) and all that it said."""
    shown = f"$ {shlex.join(command)}\n"
    try:
        done = subprocess.run(
            command,
            cwd=cwd,
            env={**os.environ, "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=BUILD_TIMEOUT,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return 127, f"{shown}{error}\n"
    text = done.stdout.decode(errors="replace")
    return done.returncode, f"{shown}{text}exit status {done.returncode}\n"


def find_compiler(cc: str | None = None) -> tuple[str, ...]:
    """The C compiler as an argument list: `cc`, else $CC, else the first of cc, gcc, clang on the path.

    A compiler that was asked for and is missing is an error; another one is not taken in its place.
    """
    wanted = cc or os.environ.get("CC", "").strip()
    if not wanted:
        for name in ("cc", "gcc", "clang"):
            if found := shutil.which(name):
                return (os.path.abspath(found),)
        raise KernelError("no C compiler found (looked for cc, gcc, clang; set CC to name one)")
    # a path may contain spaces; a command such as "ccache gcc" is several words
    words = [wanted] if shutil.which(wanted) else shlex.split(wanted)
    found = shutil.which(words[0]) if words else None
    if not found:
        raise KernelError(f"C compiler {wanted!r} not found")
    return (os.path.abspath(found), *words[1:])


@functools.lru_cache(maxsize=16)
def _compiler_version(compiler: tuple[str, ...], mtime_ns: int) -> str:
    code, said = _run([*compiler, "--version"])
    if code != 0:
        raise KernelError(f"C compiler {shlex.join(compiler)!r} does not work", said)
    return said


@functools.cache
def _cpu_identity() -> str:
    """Machine type, and model and feature flags of the first processor where /proc tells them."""
    parts = [platform.system(), platform.machine(), platform.processor()]
    wanted = ("model name", "flags", "features", "cpu part", "cpu implementer")
    try:
        first = Path("/proc/cpuinfo").read_text(errors="replace").split("\n\n")[0]
    except OSError:
        first = ""
    parts += [line for line in first.splitlines() if line.split(":")[0].strip().lower() in wanted]
    return "\n".join(parts)


def _digest(parts: Iterable[bytes]) -> str:
    """SHA-256 of length-prefixed parts: no two lists of parts are read as the same bytes."""
    total = hashlib.sha256()
    for part in parts:
        total.update(len(part).to_bytes(8, "little"))
        total.update(part)
    return total.hexdigest()


def _kernel_key(source: str, compiler: tuple[str, ...], flags: tuple[str, ...]) -> str:
    version = _compiler_version(compiler, os.stat(compiler[0]).st_mtime_ns)
    parts = [source, *compiler, version, *flags, _cpu_identity(), __version__, str(ABI)]
    return _digest(part.encode() for part in parts)


# --- cache --------------------------------------------------------------------


def cache_root() -> Path:
    """$TRACEWORDS_CACHE, else the user's cache directory."""
    given = os.environ.get("TRACEWORDS_CACHE", "")
    return Path(given).absolute() if given else user_cache_path("tracewords")


def _private_directory() -> Path:
    """The kernel cache, readable by its owner only; OSError when it cannot be made so.

    Code is loaded from here, so a directory that another user owns is refused.
    """
    root = cache_root()
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    directory = root / "kernels"
    directory.mkdir(mode=0o700, exist_ok=True)
    found = directory.stat()
    if hasattr(os, "getuid") and found.st_uid != os.getuid():
        raise PermissionError(f"{directory} belongs to another user")
    if stat.S_IMODE(found.st_mode) & 0o077:
        directory.chmod(0o700)
    return directory


@functools.cache
def _temporary_directory() -> Path:
    """A private directory for the life of this process, where the cache cannot be used."""
    directory, owner = Path(tempfile.mkdtemp(prefix="tracewords-")), os.getpid()

    def remove() -> None:
        if os.getpid() == owner:  # not in a forked child
            shutil.rmtree(directory, ignore_errors=True)

    atexit.register(remove)
    return directory


def _lookup(directory: Path, key: str) -> Path | None:
    """The library of this key if it is there and whole."""
    library = directory / f"{key}.so"
    try:
        content = library.read_bytes()
        recorded = (directory / f"{key}.sha256").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None
    return library if recorded == _digest([key.encode(), content]) else None


def _build(directory: Path, key: str, source: str, compiler: tuple[str, ...], flags: tuple[str, ...]) -> Path:
    """Compile in a scratch folder of the same file system, try to load, then rename into place."""
    with tempfile.TemporaryDirectory(prefix="build-", dir=directory) as scratch:
        place = Path(scratch)
        (place / "kernel.c").write_text(source, encoding="utf-8")
        # relative names: the compiler never sees the cache's path, whatever letters it has
        command = [*compiler, *flags, *_LINK_FLAGS, "-o", "kernel.so", "kernel.c", "-lm"]
        code, said = _run(command, cwd=place)
        library = place / "kernel.so"
        if code != 0 or not library.is_file():
            raise KernelError(f"C compiler {shlex.join(compiler)!r} could not build the kernel", said)
        try:
            ctypes.CDLL(str(library))
        except OSError as error:
            raise KernelError(f"the compiled kernel does not load: {error}", said) from error
        (place / "digest").write_text(_digest([key.encode(), library.read_bytes()]), encoding="utf-8")
        # between the two renames the digest does not match, which readers take for a miss
        os.replace(place / "digest", directory / f"{key}.sha256")
        os.replace(library, directory / f"{key}.so")
    return directory / f"{key}.so"


def _build_once(directory: Path, key: str, *arguments: Any) -> Path:
    """Build unless another process did so while this one waited for the lock."""
    try:
        with FileLock(str(directory / f"{key}.lock"), timeout=BUILD_TIMEOUT):
            return _lookup(directory, key) or _build(directory, key, *arguments)
    except Timeout as error:
        lock = directory / f"{key}.lock"
        raise KernelError(f"another process holds {lock} for over {BUILD_TIMEOUT:.0f} s") from error


def compile_source(source: Path | str, *, cc: str | None = None, flags: Sequence[str] | None = None) -> Path:
    """Compile C source to a shared library, or find it in the cache.

    Parameters
    ----------
    source : Path or str
        A file, or the source text itself (recognised by its line ends).
    cc : str, optional
        Compiler; default $CC, else cc, gcc or clang.
    flags : sequence of str, optional
        Replaces `DEFAULT_FLAGS`; what makes a shared library is always added.

    Returns
    -------
    Path
        The library, whole and loadable, named by its key.

    Raises
    ------
    KernelError
        No compiler, or one that fails; `output` holds what it said.
    """
    if isinstance(source, Path) or "\n" not in source:
        try:
            source = Path(source).read_text(encoding="utf-8")
        except OSError as error:
            raise KernelError(f"cannot read the kernel source: {error}") from error
    compiler = find_compiler(cc)
    options = DEFAULT_FLAGS if flags is None else tuple(flags)
    key = _kernel_key(source, compiler, options)
    reason: OSError | None = None
    try:
        directory = _private_directory()
        if found := _lookup(directory, key):
            return found
        return _build_once(directory, key, source, compiler, options)
    except OSError as error:
        reason = error
    try:
        directory = _temporary_directory()
        library = _lookup(directory, key) or _build_once(directory, key, source, compiler, options)
    except OSError as error:
        raise KernelError(f"no place to build the kernel: {reason}; {error}") from error
    warn_once(f"kernel cache not usable ({reason}): each process builds its kernels anew; set TRACEWORDS_CACHE")
    return library
