"""A model hub on loopback: the routes of the Hugging Face Hub that its clients use to download, and the faults of networks.
Large files lie on a second host, as on the Hub."""
import contextlib
import hashlib
import http.server
import json
import re
import threading
import urllib.parse

COMMIT = "0123456789abcdef0123456789abcdef01234567"
ERRORS = {401: "RepoNotFound", 403: "GatedRepo", 404: "RepoNotFound"}


def git_hash(data):
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


class Hub:
    def __init__(self, name, files, large=(".safetensors", "tokenizer.json")):
        self.name, self.files, self.large = name, files, large
        self.branches = {"main": COMMIT, "v1.0": COMMIT, "refs/pr/7": COMMIT}
        # Faults, to be set by tests.
        self.token, self.refusals, self.cuts, self.cut_at, self.no_ranges, self.flips, self.plain_list, self.sizes = None, [], 0, 0, False, 0, False, {}
        self.slow = threading.Event()
        self.slow.set()
        self.requests, self.lock = [], threading.Lock()
        self.servers = [self._serve(), self._serve()]
        self.url, self.cdn = (f"http://127.0.0.1:{server.server_port}" for server in self.servers)

    def _serve(self):
        hub = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def do_HEAD(self):
                hub.answer(self)

            do_GET = do_HEAD

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return server

    def close(self):
        self.slow.set()
        for server in self.servers:
            server.shutdown()
            server.server_close()

    def hash(self, path):
        data = self.files[path]
        return hashlib.sha256(data).hexdigest() if path.endswith(self.large) else git_hash(data)

    def fetched(self, *, full=False):
        """The files whose contents were asked for."""
        return [path if not full else (path, start) for method, path, start, _ in self.requests if method == "GET" and path in self.files]

    def answer(self, request):
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._answer(request)

    def _answer(self, request):
        url = urllib.parse.urlsplit(request.path)
        path = urllib.parse.unquote(url.path)
        on_hub = request.server is self.servers[0]
        token = request.headers.get("Authorization")
        if not on_hub:
            [file] = [file for file in self.files if path == f"/signed/{self.hash(file)}"]
            return self._contents(request, file, token)
        if self.refusals:
            status, headers = self.refusals.pop(0)
            return self._refuse(request, status, headers)
        if self.token and token != f"Bearer {self.token}":
            return self._refuse(request, 401)
        listing = re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/(?:revision|tree)/(.+))?", path)
        file = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
        name, revision = (listing or file).group(1, 2)
        commit = self.branches.get(revision or "main", revision)
        if name == "former/name":
            return self._redirect(request, request.path.replace("former/name", self.name))
        if name != self.name or commit != COMMIT:
            return self._refuse(request, 404)
        if listing:
            self.requests.append(("GET", "listing", 0, token))
            if "/tree/" in path:
                return self._send(request, json.dumps([self._entry(path) for path in self.files]).encode())
            siblings = [self._sibling(path) for path in self.files]
            return self._send(request, json.dumps({"id": self.name, "modelId": self.name, "sha": commit, "siblings": siblings}).encode())
        file = file[3]
        if file not in self.files:
            return self._refuse(request, 404)
        if not file.endswith(self.large):
            return self._contents(request, file, token)
        self._redirect(request, f"{self.cdn}/signed/{self.hash(file)}?X-Signature=abc", file)

    def _sibling(self, path):
        size = self.sizes.get(path, len(self.files[path]))
        if self.plain_list:
            return {"rfilename": path}
        lfs = {"lfs": {"sha256": self.hash(path), "size": size, "pointerSize": 134}} if path.endswith(self.large) else {}
        return {"rfilename": path, "size": size, "blobId": git_hash(self.files[path]), **lfs}

    def _entry(self, path):
        size = len(self.files[path])
        lfs = {"lfs": {"oid": self.hash(path), "size": size, "pointerSize": 134}} if path.endswith(self.large) else {}
        return {"type": "file", "path": path, "size": size, "oid": git_hash(self.files[path]), **lfs}

    def _metadata(self, request, file):
        request.send_header("X-Repo-Commit", COMMIT)
        request.send_header("X-Linked-Etag", f'"{self.hash(file)}"')
        request.send_header("X-Linked-Size", str(len(self.files[file])))

    def _redirect(self, request, to, file=None):
        request.send_response(302 if file else 307)
        request.send_header("Location", to)
        if file:
            self._metadata(request, file)
        request.send_header("Content-Length", "0")
        request.end_headers()

    def _refuse(self, request, status, headers=()):
        body = b'{"error": "said by the body"}'
        request.send_response(status)
        for name, value in dict(headers).items():
            request.send_header(name, value)
        if status in ERRORS:
            request.send_header("X-Error-Code", ERRORS[status])
            request.send_header("X-Error-Message", "said by the header")
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        if request.command != "HEAD":
            request.wfile.write(body)

    def _send(self, request, data):
        request.send_response(200)
        request.send_header("Content-Type", "application/json")
        request.send_header("Content-Length", str(len(data)))
        request.end_headers()
        request.wfile.write(data)

    def _contents(self, request, file, token):
        data = self.files[file]
        asked = None if self.no_ranges else re.fullmatch(r"bytes=(\d+)-", request.headers.get("Range") or "")
        start = int(asked[1]) if asked else 0
        with self.lock:
            self.requests.append((request.command, file, start, token))
            cut = self.cuts > 0 and request.command == "GET" and len(data) - start > self.cut_at > 0
            self.cuts -= cut
            flip = self.flips > 0 and request.command == "GET" and file.endswith(".safetensors")
            self.flips -= flip
        if start > len(data) or (asked and start == len(data)):
            return self._refuse(request, 416)
        request.send_response(206 if asked else 200)
        request.send_header("ETag", f'"{self.hash(file)}"')
        self._metadata(request, file)
        if asked:
            request.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        request.send_header("Content-Length", str(len(data) - start))
        request.end_headers()
        if request.command == "HEAD":
            return
        part = bytearray(data[start:start + self.cut_at] if cut else data[start:])
        if flip:
            part[0] ^= 1
        if not self.slow.is_set() and file.endswith(".safetensors"):
            request.wfile.write(part[:len(part) // 2])
            request.wfile.flush()
            self.slow.wait(60)
            part = part[len(part) // 2:]
        request.wfile.write(part)
        if cut:
            request.close_connection = True
            request.wfile.flush()
            request.connection.close()
