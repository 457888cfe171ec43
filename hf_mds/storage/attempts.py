"""Trying again: how often, after which pause, and what is said in the end."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from hf_mds.errors import MDSError, ShardFetchError, StorageError
from hf_mds.storage.faults import (
    AccessDeniedError,
    MissingFileError,
    classify_fault,
    describe_fault,
    iter_causes,
    retry_after_seconds,
)
from hf_mds.storage.redact import redact_text

__all__ = ["Attempts"]

T = TypeVar("T")

_FIRST_BACKOFF_SECONDS = 0.5
_LONGEST_BACKOFF_SECONDS = 30.0
_PROGRESS_BYTES = 64 << 10
_JITTER = random.Random()  # an own generator: a training script's seeds must not depend on network faults


@dataclass(frozen=True)
class Attempts:
    """How one file is asked for, again and again, and how its failure is worded.

    Args:
        what: The verb for the message: "fetch".
        where: The address of the file as people may see it.
        retries: How many attempts may fail before the last.
        timeout_seconds: The bound of an attempt, which bounds the pause between two as well.
        secrets: Texts that must not be in any message.
    """

    what: str
    where: str
    retries: int
    timeout_seconds: float
    secrets: tuple[str, ...] = ()

    def run(self, attempt: Callable[[], T], *, progress: Callable[[], int] | None = None) -> T:
        """Return the result of the first attempt that succeeds.

        Args:
            attempt: Makes one attempt.
            progress: Returns how many bytes a broken attempt has left for the next. An attempt that broke, but not by
                stalling, after 64 KB more than ever before does not count against `retries`.

        Raises:
            MissingFileError, AccessDeniedError, ShardFetchError: Chained to what the last attempt raised.
        """
        started, num_attempts, num_failures, most_bytes = time.monotonic(), 0, 0, 0
        while True:
            num_attempts += 1
            begun = time.monotonic()
            try:
                return attempt()
            except Exception as error:  # noqa: BLE001 - classified below, and raised again as one of ours
                failure = error
            verdict = classify_fault(failure)
            num_bytes = progress() if progress is not None else 0
            num_failures += 1
            if num_bytes >= most_bytes + _PROGRESS_BYTES:
                most_bytes = num_bytes
                num_failures -= not isinstance(failure, TimeoutError)
            if verdict != "transient" or num_failures > self.retries:
                break
            time.sleep(max(0.0, self._pause_seconds(failure, num_failures) - (time.monotonic() - begun)))
        raise self._final_error(failure, verdict, num_attempts, time.monotonic() - started)

    async def run_async(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Return the result of the first attempt of a coroutine that succeeds; see `run`."""
        started, num_attempts = time.monotonic(), 0
        while True:
            num_attempts += 1
            begun = time.monotonic()
            try:
                return await attempt()
            except Exception as error:  # noqa: BLE001 - as in `run`
                failure = error
            verdict = classify_fault(failure)
            if verdict != "transient" or num_attempts > self.retries:
                break
            await asyncio.sleep(max(0.0, self._pause_seconds(failure, num_attempts) - (time.monotonic() - begun)))
        raise self._final_error(failure, verdict, num_attempts, time.monotonic() - started)

    def _pause_seconds(self, failure: Exception, num_failures: int) -> float:
        """Return the pause counted from the attempt's beginning, so that a time-out is not waited for twice."""
        asked = retry_after_seconds(failure)
        if asked is None:
            longest = min(_FIRST_BACKOFF_SECONDS * 2.0 ** min(num_failures, 10), _LONGEST_BACKOFF_SECONDS)
            asked = _JITTER.uniform(longest / 4, longest / 2)
        return min(asked, self.timeout_seconds)

    def _final_error(self, failure: Exception, verdict: str, num_attempts: int, seconds: float) -> Exception:
        if isinstance(failure, MDSError) or verdict == "disk" or isinstance(failure, (TypeError, NotImplementedError)):
            return failure
        cause = redact_text(describe_fault(failure), self.secrets)
        text = f"{self.where}: must be there to {self.what}, got {cause}"
        error: StorageError
        if verdict == "missing":
            error = MissingFileError(f"{text}; check the address, and that the dataset is complete there")
        elif verdict == "denied":
            error = AccessDeniedError(f"{text}; check the credentials, and what they may do")
        else:
            error = ShardFetchError(
                f"{self.where}: {self.what} must succeed in {num_attempts} attempt(s), which took {seconds:.1f} s, "
                f"got {cause}; check the store and the network, or allow more retries or a longer timeout"
            )
        error.__cause__ = self._presentable(failure)
        return error

    def _presentable(self, failure: Exception) -> BaseException:
        """Return an exception to chain: itself or, if a credential is in its text or its causes', a clean stand-in."""
        texts = [str(cause) for cause in iter_causes(failure)]
        if all(redact_text(text, self.secrets) == text for text in texts):
            return failure
        return StorageError(redact_text(describe_fault(failure), self.secrets))
