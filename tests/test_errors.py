"""The error tree: what `except` catches, and that an error survives the ways it takes out of a worker."""

from __future__ import annotations

import inspect
import pickle
import re

import pytest

from hf_mds import errors

ALL = [getattr(errors, name) for name in errors.__all__]
STANDARD = {
    "CacheFullError": OSError,
    "DatasetChangedError": ValueError,
    "FormatError": ValueError,
    "IntegrityError": ValueError,
    "MissingExtraError": ImportError,
    "ConfigError": ValueError,
    "ResumeError": ValueError,
    "ShardFetchError": OSError,
    "StorageError": OSError,
    "UnformattableError": TypeError,
    "WriteError": ValueError,
}


def test_all_names_are_listed() -> None:
    defined = {name for name, value in vars(errors).items() if inspect.isclass(value)}
    assert defined == set(errors.__all__) == STANDARD.keys() | {"MDSError"}


@pytest.mark.parametrize("error", ALL, ids=lambda error: error.__name__)
def test_one_except_catches_all_and_so_does_the_standard_one(error: type[Exception]) -> None:
    assert issubclass(error, errors.MDSError)
    assert issubclass(error, STANDARD.get(error.__name__, Exception))
    assert error.__doc__


@pytest.mark.parametrize("error", ALL, ids=lambda error: error.__name__)
def test_an_error_is_made_of_one_message(error: type[Exception]) -> None:
    raised = error("shard 3: it must be whole, got half")
    assert str(raised) == "shard 3: it must be whole, got half"
    again = pickle.loads(pickle.dumps(raised))
    assert (type(again), str(again)) == (error, str(raised))


@pytest.mark.parametrize("error", ALL, ids=lambda error: error.__name__)
def test_a_dataloader_can_raise_it_again(error: type[Exception]) -> None:
    from torch._utils import ExceptionWrapper

    try:
        raise error("shard 3: it must be whole, got half")
    except errors.MDSError:
        wrapped = ExceptionWrapper(where="in DataLoader worker process 0")
    with pytest.raises(error, match="shard 3: it must be whole, got half"):
        wrapped.reraise()


def test_the_tree_in_the_docstring_is_the_tree() -> None:
    drawn: dict[str, str] = {}
    path: list[str] = []
    for indent, name in re.findall(r"^    ([ |`-]*)(\w+Error)\b", errors.__doc__ or "", re.MULTILINE):
        depth = len(indent) // 4
        path[depth:] = [name]
        drawn[name] = path[depth - 1] if depth else "Exception"
    assert drawn == {error.__name__: error.__bases__[0].__name__ for error in ALL}
