"""What the Hub and its CDN answer."""

from __future__ import annotations

import hashlib
import json
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from email.message import Message
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from hub import pushing
from hub.answers import Answer, as_json, ranged, refused
from hub.repositories import File, Repository, Tree, is_large
from hub.xet import Cas

TOKEN = "hf_open_sesame_open_sesame"
READ_TOKEN = "hf_just_looking_just_looking"
"""Reads what TOKEN reads, and may open pull requests."""
_RIGHTS = {TOKEN: "write", READ_TOKEN: "read"}
_REPOSITORY = re.compile(r"/api/datasets/([^/]+/[^/]+)(?:/([a-z-]+)(?:/([^/]+)(?:/(.+))?)?)?")


class Request:
    """What the Hub is asked."""

    def __init__(self, method: str, target: str, headers: Message, body: bytes) -> None:
        url = urlsplit(target)
        self.method, self.target, self.path, self.headers, self.body = method, target, url.path, headers, body
        self.query = {name: values[0] for name, values in parse_qs(url.query).items()}
        self.token = (headers.get("Authorization") or "").removeprefix("Bearer ")

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Hub:
    """What the two servers serve, and what they were asked."""

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.blobs: dict[str, bytes] = {}
        """Of LFS files, by sha256."""
        self.parts: dict[str, dict[int, bytes]] = {}
        """Of uploads in parts that are under way."""
        self.cas = Cas()
        self.requests: list[tuple[str, str]] = []
        """(method, path) of every request, "cdn" in front of the path where it went to the CDN."""
        self.faults: list[tuple[str, Answer | Callable[[], Answer | None]]] = []
        """Answers that are given once, to a request whose "METHOD path" contains the text; or what is done before."""
        self.lacks: set[str] = set()
        """Requests that this Hub does not know, such as "paths-info"."""
        self.endpoint = self.cdn = ""
        self.xet = False
        self.page_size = 4  # entries; so that every listing of some files takes several pages
        self.part_bytes = 1 << 20  # a larger file is uploaded in parts
        self.lock = threading.RLock()

    def commit(self, name: str, files: Mapping[str, bytes], *, private: bool = False) -> str:
        """Make a commit that holds these files alone, and return its name."""
        repository = self.repositories.setdefault(name, Repository(name, private))
        made = {path: File(data, is_large(path, len(data), data[:512])) for path, data in files.items()}
        self.blobs.update({file.sha256: file.data for file in made.values()})
        return repository.add("main", made, "by hand")

    def merge(self, name: str, number: int) -> None:
        """Merge a pull request into a branch that has not moved since."""
        branches = self.repositories[name].branches
        branches["main"] = branches[f"refs/pr/{number}"]

    def files(self, name: str, branch: str = "main") -> dict[str, bytes]:
        """Return the files of a branch as it is now."""
        return {path: file.data for path, file in self.repositories[name].head(branch).files.items()}

    def asked(self, pattern: str) -> Counter[str]:
        """Return how often each "METHOD path" that matches was asked for."""
        found = (f"{method} {path}" for method, path in self.requests)
        return Counter(text for text in found if re.search(pattern, text))

    def fault(self, request: str) -> Answer | None:
        for number, (text, fault) in enumerate(self.faults):
            if text in request:
                del self.faults[number]
                return fault if isinstance(fault, Answer) else fault()
        return None

    def answer(self, request: Request) -> Answer:
        """Return what the Hub itself answers."""
        if match := re.fullmatch(r"/datasets/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", request.path):
            return self.resolve(request, *map(unquote, match.groups()))
        if match := re.fullmatch(r"/datasets/([^/]+/[^/]+)\.git/info/lfs/objects/batch", request.path):
            return pushing.batch(self, self.open(match[1], request), request)
        if match := re.fullmatch(r"/lfs/(complete|verify)", request.path):
            return {"complete": pushing.complete, "verify": pushing.verify}[match[1]](self, request)
        if request.path == "/api/validate-yaml":
            return pushing.validate(request)
        if request.path == "/api/whoami-v2":
            self.rights(request, "read", "you must be logged in")
            return as_json({"type": "user", "name": "me", "orgs": [], "auth": {"accessToken": {"role": "write"}}})
        if request.path == "/api/repos/create":
            return pushing.create(self, request)
        if match := _REPOSITORY.fullmatch(request.path):
            name, what, revision, path = (unquote(part or "") for part in match.groups())
            if what in self.lacks:
                return Answer(404)
            return self.about(request, self.open(name, request), what, revision, path)
        return refused(404, "NotFound", "no such page")

    def about(self, request: Request, repository: Repository, what: str, revision: str, path: str) -> Answer:
        """Answer a question about a repository, or do something to it."""
        if what == "refs":
            heads = repository.branches.items()
            branches = [{"name": head, "ref": f"refs/heads/{head}", "targetCommit": sha} for head, sha in heads]
            return as_json({"branches": branches, "tags": [], "converts": []})
        if what == "branch":
            return pushing.branch(self, repository, revision, request)
        if what in ("xet-read-token", "xet-write-token"):
            return self.xet_token(request, what.split("-")[1], revision)
        sha, tree = self.tree_of(repository, revision)
        if what in ("", "revision"):
            siblings = [{"rfilename": path} for path in sorted(tree.files)]
            return as_json({"id": repository.name, "sha": sha, "private": repository.private, "siblings": siblings})
        if what == "paths-info":
            wanted = parse_qs(request.body.decode()).get("paths", [])
            return as_json([tree.entry(path) for path in wanted if path in tree.files or path in tree.folders])
        if what == "tree":
            return self.page(tree, path, request)
        if what == "preupload":
            return pushing.preupload(self, tree, revision, request)
        if what == "commit":
            return pushing.commit(self, repository, revision, request)
        return refused(404, "NotFound", "no such page")

    def page(self, tree: Tree, folder: str, request: Request) -> Answer:
        if folder not in tree.folders:
            return refused(404, "EntryNotFound", f"{folder} does not exist")
        entries = tree.children(folder, recursive=request.query.get("recursive", "").lower() == "true")
        start = int(request.query.get("cursor", "0"))
        stop, headers = start + self.page_size, {}
        if len(entries) > stop:
            bare = re.sub(r"[?&]cursor=\d+", "", request.target)
            headers["Link"] = f'<{self.endpoint}{bare}{"&" if "?" in bare else "?"}cursor={stop}>; rel="next"'
        return as_json(entries[start:stop], headers)

    def rights(self, request: Request, needed: str, text: str) -> None:
        """Refuse a token that does not do."""
        rights = _RIGHTS.get(request.token)
        if rights is None:
            raise refused(401, "", "Invalid credentials in Authorization header")
        if needed == "write" and rights != "write":
            raise refused(403, "", f"Forbidden: {text}")

    def open(self, name: str, request: Request) -> Repository:
        if request.token and request.token not in _RIGHTS:
            raise refused(401, "RepoNotFound", "Invalid credentials in Authorization header")
        repository = self.repositories.get(name)
        if repository is None or (repository.private and not request.token):
            raise refused(404 if request.token else 401, "RepoNotFound", "Repository not found")
        return repository

    @staticmethod
    def tree_of(repository: Repository, revision: str) -> tuple[str, Tree]:
        sha = repository.branches.get(revision or "main", revision)
        if sha not in repository.commits:
            raise refused(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return sha, repository.commits[sha]

    def resolve(self, request: Request, name: str, revision: str, path: str) -> Answer:
        sha, tree = self.tree_of(self.open(name, request), revision)
        headers = {"X-Repo-Commit": sha}
        if path not in tree.files:
            missing = refused(404, "EntryNotFound", "Entry not found")
            return Answer(404, {**missing.headers, **headers}, missing.body)
        file = tree.files[path]
        if not file.is_lfs:
            return ranged(file.data, request.headers, {**headers, "ETag": f'"{file.oid}"'})
        headers |= {"X-Linked-Size": str(len(file.data)), "X-Linked-Etag": f'"{file.sha256}"'}
        if file.xet_hash is not None and self.xet:
            token = f"{self.endpoint}/api/datasets/{name}/xet-read-token/{sha}"
            headers |= {"X-Xet-Hash": file.xet_hash, "Link": f'<{token}>; rel="xet-auth"'}
        return Answer(302, {**headers, "Location": f"{self.cdn}/{file.sha256}/{path}"})

    def xet_token(self, request: Request, scope: str, revision: str) -> Answer:
        if not self.xet:
            return Answer(404)
        if scope == "write":
            self.rights(request, pushing.needed(revision, request), "you may not write here")
        url, token, expires = f"{self.cdn}/cas", f"xet-{scope}", int(time.time()) + 3600
        headers = {"X-Xet-Cas-Url": url, "X-Xet-Access-Token": token, "X-Xet-Token-Expiration": str(expires)}
        return as_json({"casUrl": url, "accessToken": token, "exp": expires}, headers)

    def answer_of_cdn(self, request: Request) -> Answer:
        """Return what the CDN answers, and the store behind Xet."""
        if request.path.startswith("/cas/"):
            return self.cas.answer(self.cdn, request)
        if request.headers.get("Authorization") is not None:
            return Answer(400, {}, b"only one authentication mechanism is allowed")
        kind, _, rest = request.path[1:].partition("/")
        if kind == "upload" and request.method == "PUT":
            return pushing.receive(self, rest, request)
        if kind == "xorbs":
            return ranged(self.cas.xorbs[rest], request.headers, {})
        data = self.blobs.get(kind)
        return Answer(403) if data is None else ranged(data, request.headers, {"ETag": '"blob"'})

    def content(self, oid: str) -> File | None:
        """Return an LFS file that was uploaded in one way or the other."""
        xet_hash = self.cas.hash_per_sha256.get(oid)
        if oid not in self.blobs and xet_hash is not None:
            data = self.cas.content(xet_hash)
            if hashlib.sha256(data).hexdigest() == oid:
                self.blobs[oid] = data
        return File(self.blobs[oid], True, xet_hash) if oid in self.blobs else None
