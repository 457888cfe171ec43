"""A small, read-only Hub that the real `huggingface_hub` talks to, and a process that does the talking.

Repositories are in memory, with their commits. Blobs of LFS files come from a second origin, the CDN, as they do on the
real Hub. `HF_ENDPOINT` is read when `huggingface_hub` is imported: what asks this Hub must run in another process.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

TOKEN = "hf_open_sesame_open_sesame"
_LFS = (".mds", ".zstd", ".gz", ".bin")
_PAGE = 4  # entries; so that every listing of some files takes several pages


class Answer(Exception):
    """An answer other than a body of JSON."""

    def __init__(self, status: int, headers: Mapping[str, str] | None = None, body: bytes = b"") -> None:
        super().__init__(status)
        self.status, self.headers, self.body = status, dict(headers or {}), body


def _refused(status: int, code: str, text: str) -> Answer:
    body = json.dumps({"error": text}).encode()
    return Answer(status, {"X-Error-Code": code, "X-Error-Message": text, "Content-Type": "application/json"}, body)


class Tree:
    """The files of one commit, and the git names of its files and folders."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self.files = dict(files)
        self.oids = {path: hashlib.sha1(b"blob\0" + data).hexdigest() for path, data in files.items()}
        folders = {"/".join(path.split("/")[:depth]) for path in files for depth in range(path.count("/") + 1)}
        self.folders = {
            folder: hashlib.sha1(
                repr([(p, o) for p, o in sorted(self.oids.items()) if p.startswith(folder and folder + "/")]).encode()
            ).hexdigest()
            for folder in folders | {""}
        }

    def entry(self, path: str) -> dict[str, Any]:
        if path in self.folders:
            return {"type": "directory", "path": path, "oid": self.folders[path], "size": 0}
        data = self.files[path]
        found: dict[str, Any] = {"type": "file", "path": path, "oid": self.oids[path], "size": len(data)}
        if path.endswith(_LFS):
            found["lfs"] = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 130}
        return found

    def children(self, folder: str, *, recursive: bool) -> list[dict[str, Any]]:
        prefix = folder and folder + "/"
        names = [name for name in (*self.files, *self.folders) if name.startswith(prefix) and name != folder]
        return [self.entry(name) for name in sorted(names) if recursive or "/" not in name.removeprefix(prefix)]


@dataclass
class Repository:
    private: bool
    commits: dict[str, Tree] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)


class Hub:
    """What the two servers serve, and what they were asked."""

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.blobs: dict[str, bytes] = {}
        self.requests: list[tuple[str, str]] = []
        """(method, path) of every request, "cdn" in front of the path where it went to the CDN."""
        self.faults: list[tuple[str, Answer]] = []
        """Answers that are given once, to a request whose path contains the text."""
        self.lacks: set[str] = set()
        """Requests that this Hub does not know, such as "paths-info"."""
        self.endpoint = self.cdn = ""

    def commit(self, name: str, files: Mapping[str, bytes], *, private: bool = False) -> str:
        """Make a commit that holds these files alone, and return its name."""
        repository = self.repositories.setdefault(name, Repository(private))
        tree = Tree(files)
        sha = hashlib.sha1(f"{name} {len(repository.commits)} {tree.folders['']}".encode()).hexdigest()
        repository.commits[sha], repository.branches["main"] = tree, sha
        self.blobs.update({hashlib.sha256(data).hexdigest(): data for data in files.values()})
        return sha

    def asked(self, pattern: str) -> Counter[str]:
        """Return how often each "METHOD path" that matches was asked for."""
        found = (f"{method} {path}" for method, path in self.requests)
        return Counter(text for text in found if re.search(pattern, text))

    def fault(self, path: str) -> Answer | None:
        for number, (text, answer) in enumerate(self.faults):
            if text in path:
                del self.faults[number]
                return answer
        return None

    def answer(self, target: str, headers: Message, body: bytes) -> Any:
        """Return what the Hub itself answers, as JSON, or raise Answer."""
        url = urlsplit(target)
        if match := re.fullmatch(r"/datasets/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", url.path):
            raise self.resolve(*map(unquote, match.groups()), headers=headers)
        if not (match := re.fullmatch(r"/api/datasets/([^/]+/[^/]+)(?:/([a-z-]+)(?:/([^/]+)(?:/(.+))?)?)?", url.path)):
            raise _refused(404, "NotFound", "no such page")
        name, what, revision, path = (unquote(part or "") for part in match.groups())
        if what in self.lacks:
            raise Answer(404)
        repository = self.open(name, headers)
        if what == "refs":
            heads = repository.branches.items()
            branches = [{"name": head, "ref": f"refs/heads/{head}", "targetCommit": sha} for head, sha in heads]
            return {"branches": branches, "tags": [], "converts": []}
        sha, tree = self.tree_of(repository, revision)
        if what in ("", "revision"):
            siblings = [{"rfilename": path} for path in sorted(tree.files)]
            return {"id": name, "sha": sha, "private": repository.private, "siblings": siblings}
        if what == "paths-info":
            wanted = parse_qs(body.decode()).get("paths", [])
            return [tree.entry(path) for path in wanted if path in tree.files or path in tree.folders]
        if what == "tree":
            return self.page(tree, path, target)
        raise _refused(404, "NotFound", "no such page")

    def page(self, tree: Tree, folder: str, target: str) -> Any:
        if folder not in tree.folders:
            raise _refused(404, "EntryNotFound", f"{folder} does not exist")
        query = parse_qs(urlsplit(target).query)
        entries = tree.children(folder, recursive=query.get("recursive", [""])[0].lower() == "true")
        start = int(query.get("cursor", ["0"])[0])
        headers = {"Content-Type": "application/json"}
        if len(entries) > start + _PAGE:
            bare = re.sub(r"[?&]cursor=\d+", "", target)
            link = f"{self.endpoint}{bare}{'&' if '?' in bare else '?'}cursor={start + _PAGE}"
            headers["Link"] = f'<{link}>; rel="next"'
        raise Answer(200, headers, json.dumps(entries[start : start + _PAGE]).encode())

    def open(self, name: str, headers: Message) -> Repository:
        given = headers.get("Authorization")
        if given not in (None, f"Bearer {TOKEN}"):
            raise _refused(401, "RepoNotFound", "Invalid credentials in Authorization header")
        repository = self.repositories.get(name)
        if repository is None or (repository.private and given is None):
            raise _refused(404 if given else 401, "RepoNotFound", "Repository not found")
        return repository

    @staticmethod
    def tree_of(repository: Repository, revision: str) -> tuple[str, Tree]:
        sha = repository.branches.get(revision or "main", revision)
        if sha not in repository.commits:
            raise _refused(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return sha, repository.commits[sha]

    def resolve(self, name: str, revision: str, path: str, *, headers: Message) -> Answer:
        sha, tree = self.tree_of(self.open(name, headers), revision)
        if path not in tree.files:
            refused = _refused(404, "EntryNotFound", "Entry not found")
            refused.headers["X-Repo-Commit"] = sha
            return refused
        entry = tree.entry(path)
        if "lfs" not in entry:
            return ranged(tree.files[path], headers, {"X-Repo-Commit": sha, "ETag": f'"{entry["oid"]}"'})
        digest = entry["lfs"]["oid"]
        linked = {"X-Linked-Size": str(entry["size"]), "X-Linked-Etag": f'"{digest}"'}
        return Answer(302, {"X-Repo-Commit": sha, **linked, "Location": f"{self.cdn}/{digest}/{path}"})

    def blob(self, target: str, headers: Message) -> Answer:
        """Return what the CDN answers."""
        if headers.get("Authorization") is not None:
            return Answer(400, {}, b"only one authentication mechanism is allowed")
        data = self.blobs.get(target.split("/")[1])
        return Answer(403) if data is None else ranged(data, headers, {"ETag": '"blob"'})


def ranged(data: bytes, headers: Message, more: Mapping[str, str]) -> Answer:
    """Return the part of a file that a request asks for."""
    match = re.fullmatch(r"bytes=(\d+)-(\d*)", headers.get("Range") or "")
    if not match:
        return Answer(200, {"Accept-Ranges": "bytes", **more}, data)
    start, last = int(match[1]), min(int(match[2] or len(data)), len(data) - 1)
    if start >= len(data):
        return Answer(416, {"Content-Range": f"bytes */{len(data)}"})
    return Answer(206, {"Content-Range": f"bytes {start}-{last}/{len(data)}", **more}, data[start : last + 1])


def _handler(hub: Hub, *, is_cdn: bool) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            hub.requests.append((self.command, ("cdn" if is_cdn else "") + self.path))
            try:
                if (fault := hub.fault(self.path)) is not None:
                    raise fault
                if is_cdn:
                    raise hub.blob(self.path, self.headers)
                found = json.dumps(hub.answer(self.path, self.headers, body)).encode()
                answer = Answer(200, {"Content-Type": "application/json"}, found)
            except Answer as other:
                answer = other
            self.send_response(answer.status)
            for name, value in {**answer.headers, "Content-Length": str(len(answer.body))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(answer.body)

        do_HEAD = do_POST = do_GET

        def log_message(self, *args: object) -> None:
            """Say nothing."""

    return Handler


@contextlib.contextmanager
def serving() -> Iterator[Hub]:
    """Serve a Hub that has no repository yet."""
    hub = Hub()
    with contextlib.ExitStack() as stack:
        for is_cdn in (False, True):
            server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(hub, is_cdn=is_cdn))
            stack.callback(server.server_close)
            server.daemon_threads, server.block_on_close = True, False
            threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
            stack.callback(server.shutdown)
            url = f"http://127.0.0.1:{server.server_port}"
            hub.endpoint, hub.cdn = (hub.endpoint, url) if is_cdn else (url, "")
        yield hub


_LOOP = """
import json, os, sys, traceback
import hf_mds
from datasets import load_dataset
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
for line in sys.stdin:
    scope = {"os": os, "hf_mds": hf_mds, "load_dataset": load_dataset, "result": None, **json.loads(line)}
    try:
        exec(scope.pop("code"), scope)
        answer = {"result": scope["result"]}
    except Exception as error:
        kinds = [kind.__name__ for kind in type(error).__mro__]
        answer = {"error": str(error), "kinds": kinds, "trace": traceback.format_exc()}
    print(json.dumps(answer), file=answers, flush=True)
"""


class ClientError(Exception):
    """What went wrong in the client's process: names of the exception's classes, its text and its traceback."""

    def __init__(self, answer: Mapping[str, Any]) -> None:
        super().__init__(answer["trace"])
        self.kinds, self.text, self.trace = answer["kinds"], answer["error"], answer["trace"]


class Client:
    """A process in which `datasets` and `huggingface_hub` know our Hub for the only one."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def run(self, code: str, *, timeout_seconds: float = 60.0, **given: Any) -> Any:
        """Run code that assigns `result`; a process that takes longer is killed."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        timer = threading.Timer(timeout_seconds, self.process.kill)
        timer.start()
        try:
            self.process.stdin.write(json.dumps({"code": code, **given}) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        finally:
            timer.cancel()
        if not line:
            raise TimeoutError(f"no answer within {timeout_seconds} s: {code}")
        answer = json.loads(line)
        if "error" in answer:
            raise ClientError(answer)
        return answer["result"]


@contextlib.contextmanager
def client(hub: Hub, home: Path, **more: str) -> Iterator[Client]:
    """Run a process that asks the Hub, with all its caches below `home`."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING"))}
    environment |= {
        "HF_ENDPOINT": hub.endpoint,
        "HF_HOME": str(home),
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "HF_UPDATE_DOWNLOAD_COUNTS": "0",
        **more,
    }
    command = [sys.executable, "-c", _LOOP]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, cwd=home
    ) as process:
        try:
            yield Client(process)
        finally:
            process.kill()
