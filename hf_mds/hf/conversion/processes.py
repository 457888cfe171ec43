"""Processes that work through pieces ahead of whoever takes the results, in the order of the pieces.

Worker w of P takes pieces w, w + P, ...; what it makes of one goes into a file, and is told of through
a pipe. It is two pieces ahead at most. So all of them have work while the parent takes one piece, however large, and
nothing is held in memory. A worker whose parent is gone ends by itself; one that dies is told as such.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import secrets
import shutil
import signal
import tempfile
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import connection, get_context
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from hf_mds.errors import WriteError

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Workers"]

_AHEAD = 2
"""Pieces that a worker may have begun and the parent not yet taken."""

Work = Callable[[int], Iterator[pa.RecordBatch]]


class Workers:
    """Forked processes, which stand ready until `results` is called; make them before there are threads or locks."""

    def __init__(self, work: Work, num_procs: int) -> None:
        """Start them.

        Args:
            work: Makes record batches of a piece. What it raises, `results` raises.
            num_procs: How many there are.
        """
        # Made by the workers, which remove it if this process is killed: before there is one, nothing is to remove.
        self._folder = Path(tempfile.gettempdir(), f"hf_mds-convert-{secrets.token_hex(8)}")
        self._lifeline = os.pipe()
        self._ends: list[connection.Connection] = []
        self._processes: list[Any] = []
        context = get_context("fork")
        try:
            for number in range(num_procs):
                ours, theirs = context.Pipe()
                worker = _Worker(work, theirs, self._lifeline, [*self._ends, ours], self._folder)
                process = context.Process(target=worker.run, name=f"hf_mds-convert-{number}")
                process.start()
                theirs.close()
                self._ends.append(ours)
                self._processes.append(process)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def results(self, pieces: Sequence[int]) -> Iterator[Iterator[pa.RecordBatch]]:
        """Yield the results of each piece, in the order of the pieces.

        Raises:
            Exception: What `work` has raised in a worker, with the worker's traceback as its cause.
            WriteError: If a worker has died.
        """
        count = len(self._ends)
        for number, end in enumerate(self._ends):
            self._tell(end, list(pieces[number::count]))
        for place, piece in enumerate(pieces):
            number = place % count
            self._await(number, piece)
            path = self._folder / str(piece)
            yield _batches(path)
            path.unlink()
            self._tell(self._ends[number], None)

    def close(self) -> None:
        """End the workers, and remove what they have left."""
        for descriptor in self._lifeline:
            os.close(descriptor)
        for end in self._ends:
            end.close()
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.join(5)
            if process.exitcode is None:
                process.kill()
                process.join()
        _remove(self._folder)

    def _tell(self, end: connection.Connection, message: Any) -> None:
        with contextlib.suppress(OSError):  # where it has ended: if it should not have, `_await` tells
            end.send(message)

    def _await(self, number: int, piece: int) -> None:
        try:
            error, text = self._ends[number].recv()
        except (EOFError, OSError):
            process = self._processes[number]
            process.join(5)
            raise WriteError(
                f"piece {piece} of the source: worker {number} of {len(self._ends)} must live to convert it, got exit "
                f"code {process.exitcode} ({_exit_reason(process.exitcode)}); resume=True goes on after what is stored"
            ) from None
        if text is None:
            return
        cause = _RemoteError(f"\n\nin worker {number} of {len(self._ends)}, at piece {piece} of the source:\n{text}")
        raise _unpickled(error, text) from cause


def _remove(folder: Path) -> None:
    """Remove a folder into which others may still write: they do not find it any more, rather than fill it again."""
    gone = folder.with_name(f"{folder.name}.gone")
    with contextlib.suppress(OSError):  # where another worker was faster
        folder.rename(gone)
    shutil.rmtree(gone, ignore_errors=True)


def _exit_reason(code: int | None) -> str:
    if code is None or code >= 0:
        return "it left"
    name = signal.Signals(-code).name
    return f"killed by {name}; it may have needed more memory than there is" if -code == signal.SIGKILL else name


class _RemoteError(Exception):
    """Shows the traceback of an error that came from another process."""


def _unpickled(error: bytes, text: str) -> BaseException:
    try:
        loaded = pickle.loads(error)
    except Exception as reason:  # noqa: BLE001 - pickles may raise anything
        return WriteError(f"a worker must not fail, got {text.strip().splitlines()[-1]} (not picklable: {reason})")
    return loaded if isinstance(loaded, BaseException) else WriteError(text)


def _batches(path: Path) -> Iterator[pa.RecordBatch]:
    """Yield the record batches of a file, in place."""
    if not path.stat().st_size:
        return
    with pa.memory_map(str(path)) as source:
        yield from pa.ipc.open_stream(source)


class _Worker:
    """What runs in another process."""

    def __init__(
        self,
        work: Work,
        end: connection.Connection,
        lifeline: tuple[int, int],
        others: Sequence[connection.Connection],
        folder: Path,
    ) -> None:
        self._work, self._end, self._lifeline, self._others, self._folder = work, end, lifeline, others, folder

    def run(self) -> None:
        """Convert the pieces that the parent names, and leave."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears it too, and ends its workers
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        for other in self._others:  # else the workers would hold each other's pipes open
            other.close()
        os.close(self._lifeline[1])
        with contextlib.suppress(OSError):  # writing into it tells
            self._folder.mkdir(0o700, exist_ok=True)
        threading.Thread(target=self._leave_with_parent, daemon=True).start()
        try:
            self._convert(deque(self._end.recv()))
        except (EOFError, OSError):
            self._leave()  # the parent is gone

    def _convert(self, pieces: deque[int]) -> None:
        ahead = 0
        while pieces:
            while ahead >= _AHEAD or self._end.poll():
                self._end.recv()
                ahead -= 1
            ahead += 1
            failure = self._convert_one(pieces.popleft())
            self._end.send(failure or (b"", None))
            if failure is not None:
                return
        self._end.recv()  # until the parent hangs up, so that an early end is always a death

    def _convert_one(self, piece: int) -> tuple[bytes, str] | None:
        """Write a piece's file; return (the pickled error, its traceback) if that fails."""
        try:
            with open(self._folder / str(piece), "wb") as file:
                writer = None
                for batch in self._work(piece):
                    writer = writer or pa.ipc.new_stream(file, batch.schema)
                    writer.write_batch(batch)
                if writer is not None:
                    writer.close()
        except Exception as error:  # noqa: BLE001 - the parent raises it
            return _pickled(error), traceback.format_exc()
        return None

    def _leave_with_parent(self) -> None:
        """Wait for the end of the parent, which holds the other end of this pipe."""
        os.read(self._lifeline[0], 1)
        self._leave()

    def _leave(self) -> None:
        _remove(self._folder)
        os._exit(1)


def _pickled(error: Exception) -> bytes:
    try:
        return pickle.dumps(error)
    except Exception:  # noqa: BLE001 - pickles may raise anything
        return b""
