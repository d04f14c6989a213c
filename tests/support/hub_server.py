"""A web server that answers as the Hugging Face Hub does, for data sets: listings, files, parts of files, commits.

Small files come with a commit; the others go to its storage first (Git LFS), which keeps what a broken-off upload sent.
"""

from __future__ import annotations

import base64
import hashlib
import http.server
import json
import re
import threading
from contextlib import contextmanager
from urllib.parse import parse_qs, unquote, urlsplit

STORED_SUFFIXES = (".parquet", ".safetensors", ".png")
"""Files that go to the storage."""


class Repository:
    """A data set: its files at each commit, oldest first."""

    def __init__(self, *commits, gated=False):
        self.commits, self.gated = list(commits), gated

    def sha(self, number):
        told = sorted((name, hashlib.sha256(content).hexdigest()) for name, content in self.commits[number].items())
        return hashlib.sha1(json.dumps([number, told]).encode()).hexdigest()

    def at(self, revision):
        """The commit of a revision and its files, or None."""
        if revision == "main" and not self.commits:
            return "0" * 40, {}
        for number in reversed(range(len(self.commits))):
            if revision in ("main", self.sha(number)):
                return self.sha(number), self.commits[number]
        return None


class HubServer(http.server.ThreadingHTTPServer):
    """The hub; `url` is for HF_ENDPOINT."""

    daemon_threads = True

    def __init__(self, repositories):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repositories, self.stored = dict(repositories), {}
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.requests, self.sent_bytes = [], 0
        self.fault = lambda handler: False
        """Called before an answer; true if it has answered by itself."""

    def handle_error(self, request, client_address):
        """A client that has gone is no fault."""

    def environment(self, home):
        """Variables for a program that takes this server for the hub, and keeps its files below a folder."""
        return {"HF_ENDPOINT": self.url, "HF_HOME": str(home), "HF_TOKEN": "hf_x", "HF_HUB_DISABLE_TELEMETRY": "1"}


@contextmanager
def hub_server(repositories=()):
    running = HubServer(repositories)
    threading.Thread(target=running.serve_forever, daemon=True).start()
    try:
        yield running
    finally:
        running.shutdown()
        running.server_close()


def git_digest(content):
    """Git's name of a file's content."""
    return hashlib.sha1(f"blob {len(content)}".encode() + bytes(1) + content).hexdigest()


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def handle_any(self):
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        address = urlsplit(self.path)
        self.query = {name: values[0] for name, values in parse_qs(address.query).items()}
        self.server.requests.append((self.command, unquote(address.path)))
        if not self.server.fault(self):
            self.route(unquote(address.path))

    do_GET = do_PUT = do_POST = do_HEAD = handle_any

    def log_message(self, *_):
        pass

    def send(self, told, status=200, **headers):
        content = told if isinstance(told, bytes) else json.dumps(told).encode()
        self.send_response(status)
        for name, value in {"Content_Length": len(content), **headers}.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)
            self.server.sent_bytes += len(content)

    def refuse(self, status, code):
        self.send({"error": code}, status, X_Error_Code=code, X_Error_Message=code)

    def route(self, path):
        for pattern, act in (
            (r"/api/repos/create", self.create),
            (r"/api/validate-yaml", lambda: self.send({"errors": [], "warnings": []})),
            (r"/lfs/(\w+)", self.store),
            (r"/datasets/([^/]+/[^/]+)\.git/info/lfs/objects/batch", self.batch),
            (r"/api/datasets/([^/]+/[^/]+)/(preupload|commit|tree|paths-info|revision)/([^/]+)/?(.*)", self.repository),
            (r"/api/datasets/([^/]+/[^/]+)()()()", self.repository),
            (r"/datasets/([^/]+/[^/]+)/(resolve)/([^/]+)/(.*)", self.repository),
        ):
            if found := re.fullmatch(pattern, path):
                return act(*found.groups())
        return self.refuse(404, "RepoNotFound")

    def create(self):
        asked = json.loads(self.body)
        name = f"{asked['organization']}/{asked['name']}"
        self.server.repositories.setdefault(name, Repository())
        self.send({"url": f"{self.server.url}/datasets/{name}", "id": name})

    def store(self, oid):
        if hashlib.sha256(self.body).hexdigest() != oid:
            return self.refuse(400, "BadRequest")
        self.server.stored[oid] = self.body
        return self.send({})

    def batch(self, name):
        told = []
        for one in json.loads(self.body)["objects"]:
            upload = {"upload": {"href": f"{self.server.url}/lfs/{one['oid']}"}}
            told.append({**one, **({} if one["oid"] in self.server.stored else {"actions": upload})})
        self.send({"transfer": "basic", "objects": told})

    def repository(self, name, kind, revision, path):
        there = self.server.repositories.get(name)
        if there is None:
            return self.refuse(404, "RepoNotFound")
        if there.gated and kind == "resolve":
            return self.refuse(403, "GatedRepo")
        found = there.at(revision or "main")
        if found is None:
            return self.refuse(404, "RevisionNotFound")
        sha, files = found
        if kind in ("", "revision"):
            listed = [{"rfilename": one} for one in files]
            return self.send({"id": name, "sha": sha, "siblings": listed, "private": False, "gated": False})
        act = {"tree": self.tree, "paths-info": self.paths, "resolve": self.resolve}.get(kind)
        if act is not None:
            return act(sha, files, path)
        return self.commit(there, files) if kind == "commit" else self.preupload()

    def tree(self, sha, files, path):
        prefix = f"{path}/" if path else ""
        below = [name for name in files if name.startswith(prefix)]
        if path and not below:
            return self.refuse(404, "EntryNotFound")
        folders = sorted({prefix + name.removeprefix(prefix).rpartition("/")[0] for name in below} - {prefix})
        told = [{"type": "directory", "path": one, "oid": "d" * 40} for one in folders if one]
        return self.send(told + [self.described(one, files[one]) for one in sorted(below)])

    def paths(self, sha, files, path):
        if self.headers["Content-Type"].startswith("application/json"):
            asked = json.loads(self.body)["paths"]
        else:
            asked = parse_qs(self.body.decode())["paths"]
        told = [self.described(one, files[one]) for one in asked if one in files]
        folders = [one for one in asked if any(name.startswith(f"{one}/") for name in files)]
        self.send(told + [{"type": "directory", "path": one, "oid": "d" * 40} for one in folders])

    @staticmethod
    def described(name, content):
        told = {"type": "file", "path": name, "size": len(content), "oid": git_digest(content)}
        if name.endswith(STORED_SUFFIXES):
            told["lfs"] = {"oid": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 130}
        return told

    def resolve(self, sha, files, path):
        if path not in files:
            return self.refuse(404, "EntryNotFound")
        content, headers = files[path], {"ETag": f'"{hashlib.sha1(files[path]).hexdigest()}"', "X_Repo_Commit": sha}
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if asked is None:
            return self.send(content, Accept_Ranges="bytes", **headers)
        first, last = int(asked[1]), min(int(asked[2] or len(content)), len(content) - 1)
        told = f"bytes {first}-{last}/{len(content)}"
        return self.send(content[first : last + 1], 206, Content_Range=told, **headers)

    def preupload(self):
        asked = json.loads(self.body)["files"]
        modes = ["lfs" if one["path"].endswith(STORED_SUFFIXES) else "regular" for one in asked]
        told = [
            {"path": one["path"], "uploadMode": mode, "shouldIgnore": False}
            for one, mode in zip(asked, modes, strict=True)
        ]
        self.send({"files": told})

    def commit(self, there, files):
        changed = dict(files)
        for line in map(json.loads, self.body.splitlines()):
            value = line["value"]
            if line["key"] == "file":
                changed[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                changed[value["path"]] = self.server.stored[value["oid"]]
            elif line["key"] == "deletedFile":
                del changed[value["path"]]
        there.commits.append(changed)
        sha = there.sha(-1 % len(there.commits))
        self.send({"success": True, "commitOid": sha, "commitUrl": f"{self.server.url}/c/{sha}"})
