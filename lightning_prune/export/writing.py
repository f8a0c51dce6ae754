"""Files that appear whole or not at all."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import threading
import zlib
from collections.abc import Iterator


@contextlib.contextmanager
def replacing(destination: str | os.PathLike[str]) -> Iterator[str]:
    """A name to write to beside a file, which takes the file's place when the block ends without an error.

    Links are followed, an existing file's mode is kept, and what a killed writer of the same file left is removed.

    Args:
        destination: The file; it may exist.

    Yields:
        A name in the same folder, of an empty file that exists.

    Raises:
        FileNotFoundError: If there is no such folder.
        IsADirectoryError: If it is a folder.
        OSError: If the file cannot be written; what was there is there still.

    Example:
        >>> import tempfile
        >>> path = os.path.join(tempfile.mkdtemp(), "file")
        >>> with replacing(path) as temporary:
        ...     _ = open(temporary, "w").write("whole")
        ...     os.path.exists(path)
        False
        >>> open(path).read()
        'whole'
    """
    target = os.path.realpath(destination)
    folder, name = os.path.split(target)
    _require_place(target, folder)
    start = _start_of_names(name)
    _sweep(folder, start)
    temporary = os.path.join(folder, f"{start}{os.getpid()}-{threading.get_ident()}.part")
    try:
        mode = _create(temporary, target, destination)
        yield temporary
        _flush(temporary, mode)
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def _require_place(target: str, folder: str) -> None:
    if os.path.isdir(target):
        raise IsADirectoryError(f"'{target}' is a folder")
    if not os.path.isdir(folder):
        raise FileNotFoundError(f"there is no folder '{folder}'")


def _create(temporary: str, target: str, destination: str | os.PathLike[str]) -> int:
    """Creates the empty file; of an existing one nobody else may read the new contents earlier than the old ones."""
    old = os.stat(target) if os.path.exists(target) else None
    try:
        opened = os.open(temporary, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o666 if old is None else 0o600)
    except OSError as error:  # the name that was asked for says more than that of the temporary file
        raise OSError(error.errno, error.strerror, os.fspath(destination)) from None
    mode = stat.S_IMODE((os.fstat(opened) if old is None else old).st_mode)
    os.close(opened)
    return mode


def _flush(temporary: str, mode: int) -> None:
    """On the disk before it gets its name: after a power cut the name must not stand for an empty file."""
    with open(temporary, "rb") as written:
        os.fsync(written.fileno())
    os.chmod(temporary, mode)


def _start_of_names(name: str) -> str:
    """Short whatever the file is called, and another on each machine that shares the folder."""
    return f".lightning_prune-{zlib.crc32(f'{socket.gethostname()}/{name}'.encode(errors='surrogateescape')):08x}-"


def _sweep(folder: str, start: str) -> None:
    for name in os.listdir(folder):
        if name.startswith(start) and name.endswith(".part"):
            process = name.removeprefix(start).partition("-")[0]
            if process.isdecimal() and not _runs(int(process)):
                with contextlib.suppress(OSError):
                    os.unlink(os.path.join(folder, name))


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return True
