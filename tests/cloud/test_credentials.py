"""Credentials as each store's own users give them; wrong ones are refused at once, and never shown."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from datasets import load_dataset
from servers import AZURE_KEY, S3_IDENTITIES, Store

import hf_mds
from hf_mds.errors import MissingExtraError
from hf_mds.storage import AccessDeniedError, Remote

pytestmark = pytest.mark.timeout(120)
WRONG_KEY = "d3Jvbmcta2V5LXdyb25nLWtleS13cm9uZy1rZXk="  # base64, as Azure wants its keys


def numbers_of(dataset: Any) -> list[int]:
    return [sample["n"] for sample in dataset]


@pytest.mark.parametrize("kind", ["s3", "gcs", "azure"])
def test_from_the_environment(
    kind: str, request: pytest.FixtureRequest, folder: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    store: Store = request.getfixturevalue(kind)
    url = store.put(folder, "from-environment")
    for name, value in store.environment.items():
        monkeypatch.setenv(name, value)
    assert numbers_of(hf_mds.open(url, local=str(tmp_path))) == list(range(101))
    dataset = load_dataset(
        "mds", data_files=f"{url}/index.json", split="train", streaming=True, local=str(tmp_path / "b")
    )
    assert numbers_of(dataset) == list(range(101))


def test_an_s3_profile(s3: Store, folder: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    url = s3.put(folder, "profile")
    key, secret, _ = S3_IDENTITIES["reader"]
    (tmp_path / "config").write_text(
        f"[profile lab]\naws_access_key_id = {key}\naws_secret_access_key = {secret}\n"
        f"endpoint_url = {s3.storage_options['endpoint_url']}\n"
    )
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    samples = hf_mds.open(url, storage_options={"profile": "lab"}, local=str(tmp_path / "cache"))
    assert numbers_of(samples) == list(range(101))


WRONG: Mapping[str, Callable[[Store], Mapping[str, Any]]] = {
    "s3-key": lambda store: {**store.storage_options, "key": "wrong-key-wrong-key", "secret": "hush-hush-hush"},
    "s3-secret": lambda store: {**store.storage_options, "secret": "hush-hush-hush"},
    "azure-key": lambda store: {
        "connection_string": store.storage_options["connection_string"].replace(AZURE_KEY, WRONG_KEY)
    },
    "sftp-password": lambda store: {**store.storage_options, "password": "hush-hush-hush"},
}
SECRETS = ["hush-hush-hush", WRONG_KEY, "wrong-key-wrong-key", AZURE_KEY, "testsecret", "open-sesame"]


def assert_hidden(error: BaseException, secrets: list[str]) -> None:
    text = "".join(traceback.format_exception(error)) + repr(error)
    source = Path(__file__).read_text().splitlines()
    shown = "\n".join(line for line in text.splitlines() if line.strip() not in {own.strip() for own in source})
    assert [secret for secret in secrets if secret in shown] == []


@pytest.mark.parametrize("name", sorted(WRONG))
def test_wrong_credentials(
    name: str, request: pytest.FixtureRequest, folder: str, numbers: Any, tmp_path: Path
) -> None:
    store: Store = request.getfixturevalue(name.partition("-")[0])
    url = store.put(folder, "wrong-credentials")
    options = WRONG[name](store)
    with pytest.raises(AccessDeniedError, match="check the credentials") as caught:
        hf_mds.open(url, storage_options=options, local=str(tmp_path))
    assert_hidden(caught.value, SECRETS)
    with pytest.raises(AccessDeniedError, match="check the credentials") as caught:
        load_dataset("mds", data_files=f"{url}/index.json", storage_options=dict(options))
    assert_hidden(caught.value, SECRETS)
    with pytest.raises(AccessDeniedError) as caught:
        numbers.write(f"{url}/new", count=1, storage_options=options)
    assert_hidden(caught.value, SECRETS)
    assert "hush" not in repr(Remote(url, options))


def test_no_credentials(s3: Store, folder: str) -> None:
    url = s3.put(folder, "no-credentials")
    with pytest.raises(AccessDeniedError, match="check the credentials"):
        hf_mds.open(url, storage_options={"endpoint_url": s3.storage_options["endpoint_url"]})
    with pytest.raises(AccessDeniedError, match="check the credentials"):
        hf_mds.open(url, storage_options={"endpoint_url": s3.storage_options["endpoint_url"], "anon": True})


def test_credentials_that_may_not_write(s3: Store, folder: str, numbers: Any, tmp_path: Path) -> None:
    key, secret, _ = S3_IDENTITIES["reader"]
    options = {**s3.storage_options, "key": key, "secret": secret}
    url = s3.put(folder, "read-only")
    assert numbers_of(hf_mds.open(url, storage_options=options, local=str(tmp_path))) == list(range(101))
    with pytest.raises(AccessDeniedError, match="check the credentials"):
        numbers.write(f"{url}/new", count=1, storage_options=options)


EXTRAS = {"s3": "s3fs", "gs": "gcsfs", "az": "adlfs", "oci": "ocifs", "sftp": "paramiko", "http": "aiohttp"}


@pytest.mark.parametrize("scheme", sorted(EXTRAS))
def test_a_package_that_is_missing(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = sys.modules["fsspec.registry"]  # a mapping of the same name hides the module
    module = EXTRAS[scheme]
    names = [name for name in sys.modules if name.split(".")[0] == module or name.startswith("fsspec.implementations.")]
    for name in names:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)  # type: ignore[arg-type]
    monkeypatch.setattr(registry, "_registry", {})
    monkeypatch.setattr(registry, "registry", {})
    extra = {"gs": "gcs", "az": "azure"}.get(scheme, scheme)
    url = f"{scheme}://127.0.0.1/c4"
    for read in (lambda: hf_mds.open(url), lambda: load_dataset("mds", data_files=f"{url}/index.json")):
        with pytest.raises(MissingExtraError, match=rf'pip install "hf_mds\[{extra}\]"'):
            read()
