"""How files come into a repository."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from typing import TYPE_CHECKING, Any

import yaml

from hub.answers import Answer, as_json, refused
from hub.repositories import File, Repository, Tree, is_large

if TYPE_CHECKING:
    from hub.api import Hub, Request

_OWNER = "me"


def needed(revision: str, request: Request) -> str:
    """Return the right that a change of a branch asks for: pull requests are open to everybody."""
    return "read" if "create_pr" in request.query or revision.startswith("refs/pr/") else "write"


def create(hub: Hub, request: Request) -> Answer:
    """Create a repository, with a first commit as the Hub makes one."""
    hub.rights(request, "write", "you don't have the rights to create a dataset")
    owner, name = request.json.get("organization") or _OWNER, request.json["name"]
    if owner != _OWNER:
        return refused(403, "", f"Forbidden: you don't have the rights to create a dataset under {owner}")
    full, url = f"{owner}/{name}", f"{hub.endpoint}/datasets/{owner}/{name}"
    with hub.lock:
        if full in hub.repositories:
            return refused(409, "", "You already created this dataset repo", url=url)
        private = bool(request.json.get("private")) or request.json.get("visibility") == "private"
        repository = hub.repositories[full] = Repository(full, private)
        repository.add("main", {".gitattributes": File(b"*.mds filter=lfs\n", False)}, "initial commit")
    return as_json({"url": url})


def branch(hub: Hub, repository: Repository, name: str, request: Request) -> Answer:
    hub.rights(request, "write", "you may not create branches")
    start = json.loads(request.body or b"{}").get("startingPoint") or "main"
    if name in repository.branches:
        return refused(409, "", "Reference already exists")
    repository.branches[name] = hub.tree_of(repository, start)[0]
    return as_json({})


def validate(request: Request) -> Answer:
    """Say whether a README begins with metadata that can be read."""
    match = re.match(r"---\n(.*?)\n?---\n", request.json["content"], re.DOTALL)
    try:
        yaml.safe_load(match[1] if match else "")
    except yaml.YAMLError as error:
        return as_json({"errors": [{"message": str(error)}], "warnings": []}, status=400)
    return as_json({"errors": [], "warnings": []})


def preupload(hub: Hub, tree: Tree, revision: str, request: Request) -> Answer:
    """Say how each of some files is to be uploaded."""
    hub.rights(request, needed(revision, request), "you may not write here")
    asked = request.json["files"]
    if len(asked) > 256:
        return refused(413, "", "too many files")
    ignored = tree.files[".gitignore"].data.decode().split() if ".gitignore" in tree.files else []
    answers = []
    for file in asked:
        path = file["path"]
        large = is_large(path, file["size"], base64.b64decode(file["sample"]))
        found: dict[str, Any] = {"path": path, "uploadMode": "lfs" if large else "regular"}
        found["shouldIgnore"] = any(path.endswith(name) for name in ignored)
        if path in tree.files:
            there = tree.files[path]
            found["oid"] = there.sha256 if there.is_lfs else there.oid
        answers.append(found)
    return as_json({"files": answers})


def batch(hub: Hub, repository: Repository, request: Request) -> Answer:
    """Say where LFS files are to be put."""
    hub.rights(request, needed(request.json.get("ref", {}).get("name", "refs/pr/"), request), "you may not write here")
    objects = []
    for file in request.json["objects"]:
        oid, size = file["oid"], file["size"]
        found: dict[str, Any] = {"oid": oid, "size": size}
        url = f"{hub.cdn}/upload/{oid}"
        if hub.content(oid) is None:
            upload: dict[str, Any] = {"href": url}
            if size > hub.part_bytes:
                urls = {str(part + 1): f"{url}/{part + 1}" for part in range(math.ceil(size / hub.part_bytes))}
                upload = {"href": f"{hub.endpoint}/lfs/complete", "header": {"chunk_size": str(hub.part_bytes), **urls}}
            found["actions"] = {"upload": upload, "verify": {"href": f"{hub.endpoint}/lfs/verify"}}
        objects.append(found)
    return as_json({"transfer": "basic", "objects": objects})


def receive(hub: Hub, name: str, request: Request) -> Answer:
    """Take a file, or a part of one."""
    oid, _, part = name.partition("/")
    if part:
        hub.parts.setdefault(oid, {})[int(part)] = request.body
        return Answer(200, {"ETag": f'"{hashlib.md5(request.body).hexdigest()}"'})
    if hashlib.sha256(request.body).hexdigest() != oid:
        return Answer(400, {}, b"BadDigest")
    hub.blobs[oid] = request.body
    return Answer(200)


def complete(hub: Hub, request: Request) -> Answer:
    """Join the parts of a file."""
    oid, found = request.json["oid"], hub.parts.get(request.json["oid"], {})
    data = b"".join(found.get(part["partNumber"], b"") for part in request.json["parts"])
    if hashlib.sha256(data).hexdigest() != oid:
        return refused(400, "", "the parts do not make up the file")
    hub.blobs[oid] = data
    return as_json({})


def verify(hub: Hub, request: Request) -> Answer:
    file = hub.content(request.json["oid"])
    return as_json({}) if file and len(file.data) == request.json["size"] else refused(404, "", "no such object")


def commit(hub: Hub, repository: Repository, revision: str, request: Request) -> Answer:
    """Change files of a branch, or of a new pull request, all at once."""
    to_new = "create_pr" in request.query
    hub.rights(request, needed(revision, request), "you may not write here")
    head, *changes = [json.loads(line) for line in request.body.splitlines()]
    with hub.lock:
        sha, tree = hub.tree_of(repository, revision)
        if revision not in repository.branches:
            return refused(404, "RevisionNotFound", f"{revision} is no branch")
        parent = head["value"].get("parentCommit")
        if parent not in (None, sha):
            return refused(412, "", "A commit has happened since. Please refresh and try again.")
        files = dict(tree.files)
        for change in changes:
            _apply(hub, files, change["key"], change["value"])
        number = 1 + sum(name.startswith("refs/pr/") for name in repository.branches)
        target = f"refs/pr/{number}" if to_new else revision
        made = repository.add(target, files, head["value"]["summary"])
    url = f"{hub.endpoint}/datasets/{repository.name}"
    found = {"success": True, "commitOid": made, "commitUrl": f"{url}/commit/{made}"}
    return as_json({**found, "pullRequestUrl": f"{url}/discussions/{number}"} if to_new else found)


def _apply(hub: Hub, files: dict[str, File], key: str, value: dict[str, Any]) -> None:
    path = value["path"]
    if key == "file":
        data = base64.b64decode(value["content"])
        if is_large(path, len(data), data[:512]):
            raise refused(400, "", f"{path} must be uploaded as an LFS file")
        files[path] = File(data, False)
    elif key == "lfsFile":
        file = hub.content(value["oid"])
        if file is None or len(file.data) != value.get("size", len(file.data)):
            raise refused(400, "", f"LFS pointer pointed to a file that does not exist: {value['oid']}")
        files[path] = file
    elif key == "deletedFile":
        if files.pop(path, None) is None:
            raise refused(404, "EntryNotFound", "A file with this name doesn't exist")
    else:
        for name in [name for name in files if name.startswith(path.rstrip("/") + "/")]:
            del files[name]
