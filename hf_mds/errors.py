"""Every error that hf_mds raises on its own account.

    MDSError                        anything below, so that one `except` catches all
    |-- FormatError      ValueError     bytes that are no valid MDS: where, what, what to do
    |   `-- IntegrityError              a file whose size or digest is not what the index says
    |       `-- DatasetChangedError     a dataset that was written again while it was read
    |-- StorageError     OSError        a store that cannot be read or written
    |   |-- ShardFetchError             a shard could not be fetched after every attempt
    |   `-- CacheFullError              the cache limit or the disk leaves no room
    |-- WriteError       ValueError     a value that its column cannot hold exactly
    |-- ConfigError      ValueError     a training configuration that is none
    |-- ResumeError      ValueError     a state that does not fit this dataset or world
    |-- UnformattableError TypeError    a column that the format asked for has no place for
    `-- MissingExtraError ImportError   a package that an extra would install

Wrong arguments raise ValueError or TypeError as everywhere in Python.

Each error is built from one message, because a DataLoader rebuilds what a worker raised as `type(error)(text)`:
an error that wanted more arguments would reach the training loop as a bare RuntimeError.
"""

from __future__ import annotations

__all__ = [
    "CacheFullError",
    "ConfigError",
    "DatasetChangedError",
    "FormatError",
    "IntegrityError",
    "MDSError",
    "MissingExtraError",
    "ResumeError",
    "ShardFetchError",
    "StorageError",
    "UnformattableError",
    "WriteError",
]


class MDSError(Exception):
    """The root of all errors of hf_mds."""


class FormatError(MDSError, ValueError):
    """Bytes that are not what the MDS format asks for.

    The message has the shape `<where>: <what> must be <rule>, got <value>; <what to do>`.
    """


class IntegrityError(FormatError):
    """A file whose size or digest differs from what its index says."""


class DatasetChangedError(IntegrityError):
    """A dataset that was written again at its address while it was read; open it again to read the new one."""


class StorageError(MDSError, OSError):
    """A store that cannot be read or written."""


class ShardFetchError(StorageError):
    """A file of a dataset could not be fetched, after every attempt; the last cause is chained and named."""


class CacheFullError(StorageError):
    """The cache limit, or the disk, leaves no room for what must be in the cache at once."""


class WriteError(MDSError, ValueError):
    """A sample that a writer refuses: names column, sample and reason."""


class ResumeError(MDSError, ValueError):
    """A state that does not fit the dataset, its options or the world; names both values."""


class ConfigError(MDSError, ValueError):
    """A training configuration that is none: one line for each fault, with file, line and key."""


class UnformattableError(MDSError, TypeError):
    """A column whose values the format of `with_format` has no place for; names both. The samples are in order."""


class MissingExtraError(MDSError, ImportError):
    """A package is missing; the message holds the exact pip command."""
