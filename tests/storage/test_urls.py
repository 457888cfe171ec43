from __future__ import annotations

import pytest

from hf_mds.storage import redact_url, split_file_url
from hf_mds.storage.redact import redact_text, secret_values
from hf_mds.storage.urls import is_hub_id, join_url


@pytest.mark.parametrize(
    ("folder", "name", "file"),
    [
        ("s3://bucket/c4", "index.json", "s3://bucket/c4/index.json"),
        ("s3://bucket", "index.json", "s3://bucket/index.json"),
        ("s3://bucket/odd?name", "a#b?c", "s3://bucket/odd?name/a#b?c"),
        ("hf://datasets/u/r@main/train", "index.json", "hf://datasets/u/r@main/train/index.json"),
        ("https://host/d", "a b#1?.mds", "https://host/d/a%20b%231%3F.mds"),
        ("https://host/d?token=x/y", "index.json", "https://host/d/index.json?token=x/y"),
        ("zip://data::s3://b/a.zip", "index.json", "zip://data/index.json::s3://b/a.zip"),
        ("simplecache::s3://b/d", "index.json", "simplecache::s3://b/d/index.json"),
        ("/data/c4", "index.json", "/data/c4/index.json"),
        ("c4", "index.json", "c4/index.json"),
        ("memory://", "index.json", "memory://index.json"),
    ],
)
def test_joining_and_splitting(folder: str, name: str, file: str) -> None:
    assert join_url(folder, name) == file
    if folder != "memory://":
        assert split_file_url(file) == (folder, name)


def test_splitting_at_the_edges() -> None:
    assert split_file_url("index.json") == (".", "index.json")
    assert split_file_url("/index.json") == ("/", "index.json")
    assert join_url("s3://b/d/", "x") == "s3://b/d/x"
    assert join_url("s3://b/d", "") == "s3://b/d"
    for url in ("s3://bucket/d/", "s3://bucket", ""):
        with pytest.raises(ValueError, match="url must name a file"):
            split_file_url(url)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("s3://key:secret@bucket/x", "s3://bucket/x"),
        ("https://token@host/x", "https://host/x"),
        ("https://h/x?X-Amz-Signature=abc&y=1#frag", "https://h/x?..."),
        ("https://acc.blob.core.windows.net/c/x?sv=1&sig=abc", "https://acc.blob.core.windows.net/c/x?..."),
        ("abfs://container@account.dfs.core.windows.net/x", "abfs://container@account.dfs.core.windows.net/x"),
        ("hf://datasets/u/r@main/x", "hf://datasets/u/r@main/x"),
        ("zip://a::https://u:p@h/a.zip?sig=abc", "zip://a::https://h/a.zip?..."),
        ("/data/odd?name=1#2", "/data/odd?name=1#2"),
    ],
)
def test_a_shown_url_holds_no_credential(url: str, shown: str) -> None:
    assert redact_url(url) == shown


def test_secrets_of_options_are_found_and_blotted_out() -> None:
    options = {
        "key": "AKIA1234",
        "client_kwargs": {"endpoint_url": "http://localhost:1", "aws_secret_access_key": "s3cr3t"},
        "token": {"refresh_token": "r3fresh"},
        "headers": [("Authorization", "Bearer abcd")],
        "account_name": "public",
        "anon": True,
    }
    secrets = secret_values(options)
    assert set(secrets) == {"AKIA1234", "s3cr3t", "r3fresh", "Authorization", "Bearer abcd"}
    text = redact_text("AKIA1234 got s3cr3t at http://u:p@h/x?sig=abc, for public", secrets)
    assert text == "*** got *** at http://h/x?... for public"


def test_ids_of_the_hub_are_told_from_paths() -> None:
    ids = ("me/c4", "squad", "me/v1.5-x", "me_2/x.y")
    paths = (
        "./c4",
        "../c4",
        "~/c4",
        "/c4",
        "data/c4/train",
        "c4.csv",
        "me/",
        "..",
        ".",
        "me/..",
        "",
        "a//b",
        "a\n",
        "a b",
    )
    assert [name for name in (*ids, *paths) if is_hub_id(name)] == list(ids)
