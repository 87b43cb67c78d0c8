"""A hub and an S3 server on this machine, for tests of downloads. Standard library only. Each answers as the real one does,
records what it is asked, and fails as a test tells it to: `fault` may answer a request in its place by returning True."""

import datetime
import hashlib
import hmac
import http.server
import json
import threading
import urllib.parse


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def handle(self):
        try:
            super().handle()
        except (ConnectionError, TimeoutError):
            pass  # whoever asked has gone

    def do(self):
        store = self.server.store
        with store.lock:
            store.requests.append((self.command, self.path, dict(self.headers)))
        if store.fault and store.fault(self):
            return
        store.answer(self)

    do_GET = do_HEAD = do_PUT = do

    def reply(self, status, headers=(), body=b""):
        self.send_response(status)
        for name, value in dict(headers).items():
            self.send_header(name, value)
        if "Content-Length" not in dict(headers):
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def reply_file(self, content, headers=(), cut_after=None):
        """The range that is asked for, or all of it; with `cut_after` the connection ends after these bytes."""
        status, first, last = 200, 0, len(content) - 1
        headers = dict(headers)
        if found := self.headers.get("Range", "").removeprefix("bytes="):
            first, last = (int(number) for number in found.split("-"))
            last = min(last, len(content) - 1)
            status, headers["Content-Range"] = 206, f"bytes {first}-{last}/{len(content)}"
        body = content[first : last + 1]
        headers["Content-Length"] = str(len(body))
        if cut_after is None:
            self.reply(status, headers, body)
        else:
            self.reply(status, headers, body[:cut_after])
            self.close_connection = True


class Store:
    def __init__(self):
        self.lock = threading.Lock()
        self.requests = []  # (method, path, headers)
        self.fault = None
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.store = self
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def close(self):
        self.server.shutdown()
        self.server.server_close()

    def asked(self, method, part):
        """The requests of this method whose path contains `part`."""
        with self.lock:
            return [request for request in self.requests if request[0] == method and part in request[1]]


class Storage(Store):
    """Where a hub keeps large files: another host, whose addresses are signed."""

    def __init__(self):
        super().__init__()
        self.files = {}
        self.opens = threading.Event()  # no file is sent before
        self.opens.set()

    def close(self):
        self.opens.set()
        super().close()

    def answer(self, request):
        self.opens.wait()
        digest = urllib.parse.urlsplit(request.path).path.strip("/")
        if digest in self.files and "signature=" in request.path:
            request.reply_file(self.files[digest])
        else:
            request.reply(403)


class Hub(Store):
    """models: name -> {file: bytes}. Files whose names end in .safetensors or .bin are large ones."""

    def __init__(self, models):
        super().__init__()
        self.models = models
        self.token = None  # that gated models need
        self.tells_blobs = True
        self.storage = Storage()

    def close(self):
        super().close()
        self.storage.close()

    def commit(self, name):
        every = b"".join(key.encode() + value for key, value in sorted(self.models[name].items()))
        return hashlib.sha1(every).hexdigest()

    @staticmethod
    def is_large(name):
        return name.endswith((".safetensors", ".bin"))

    def etag(self, name, content):
        if self.is_large(name):
            return hashlib.sha256(content).hexdigest()
        return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()

    def listed(self, name, content):
        listed = {"rfilename": name}
        if self.tells_blobs:
            listed |= {"size": len(content), "blobId": hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()}
            if self.is_large(name):
                listed["lfs"] = {"sha256": self.etag(name, content), "size": len(content), "pointerSize": 134}
        return listed

    def tree(self, name):
        files = []
        for file, content in self.models[name].items():
            files.append({"type": "file", "path": file, "size": len(content), "oid": self.listed(file, content)["blobId"]})
            if self.is_large(file):
                files[-1]["lfs"] = {"oid": self.etag(file, content), "size": len(content), "pointerSize": 134}
        return files

    def answer(self, request):
        path = urllib.parse.unquote(urllib.parse.urlsplit(request.path).path)
        if self.token and request.headers.get("Authorization") != f"Bearer {self.token}":
            request.reply(401, {"X-Error-Code": "GatedRepo"}, b'{"error": "Access is restricted."}')
            return
        for name in self.models:
            commit = self.commit(name)
            if path.startswith(f"/api/models/{name}/revision/"):
                if path.rsplit("/", 1)[1] not in ("main", commit):
                    request.reply(404, {"X-Error-Code": "RevisionNotFound"})
                    return
                siblings = [self.listed(file, content) for file, content in self.models[name].items()]
                body = {"id": name, "modelId": name, "sha": commit, "private": False, "tags": [], "siblings": siblings}
                request.reply(200, {"Content-Type": "application/json", "X-Repo-Commit": commit}, json.dumps(body).encode())
                return
            if path == f"/api/models/{name}/tree/{commit}":
                request.reply(200, {"Content-Type": "application/json"}, json.dumps(self.tree(name)).encode())
                return
            for revision in ("main", commit):
                file = path.removeprefix(f"/{name}/resolve/{revision}/")
                if file in self.models[name]:
                    self.answer_file(request, file, self.models[name][file], commit)
                    return
        request.reply(404, {"X-Error-Code": "RepoNotFound"}, b'{"error": "Repository not found"}')

    def answer_file(self, request, name, content, commit):
        etag = self.etag(name, content)
        if not self.is_large(name):
            request.reply_file(content, {"ETag": f'"{etag}"', "X-Repo-Commit": commit, "Accept-Ranges": "bytes"})
            return
        self.storage.files[etag] = content
        headers = {"X-Linked-ETag": f'"{etag}"', "X-Linked-Size": str(len(content)), "X-Repo-Commit": commit}
        request.reply(302, headers | {"Location": f"{self.storage.url}/{etag}?signature=x"})


class S3(Store):
    """objects: key -> bytes, all in one bucket. Signatures are checked as AWS documents them."""

    def __init__(self, bucket, objects, keys=None):
        super().__init__()
        self.bucket = bucket
        self.objects = objects
        self.keys = keys  # (access key id, secret, session token or None); None: public
        self.page = 1000
        self.checksums = {}  # key -> headers

    def answer(self, request):
        if self.keys and (why := self.refusal(request)):
            body = f"<Error><Code>{why}</Code><Message>The request is not signed right</Message></Error>"
            request.reply(403, {"Content-Type": "application/xml"}, body.encode())
            return
        url = urllib.parse.urlsplit(request.path)
        path = urllib.parse.unquote(url.path)
        query = dict(urllib.parse.parse_qsl(url.query, keep_blank_values=True))
        if path.rstrip("/") == f"/{self.bucket}" and query.get("list-type") == "2":
            self.answer_list(request, query)
            return
        key = path.removeprefix(f"/{self.bucket}/")
        if key not in self.objects:
            request.reply(404, {}, b"<Error><Code>NoSuchKey</Code></Error>")
            return
        content = self.objects[key]
        etag = f'"{hashlib.md5(content).hexdigest()}"'
        if request.headers.get("If-Match", etag) != etag:
            request.reply(412, {}, b"<Error><Code>PreconditionFailed</Code></Error>")
            return
        request.reply_file(content, {"ETag": etag} | self.checksums.get(key, {}))

    def answer_list(self, request, query):
        keys = sorted(key for key in self.objects if key.startswith(query["prefix"]))
        begin = int(query.get("continuation-token", "0+").rstrip("+"))
        more = ""
        if begin + self.page < len(keys):
            more = f"<NextContinuationToken>{begin + self.page}+</NextContinuationToken>"
        contents = "".join(
            f"<Contents><Key>{urllib.parse.quote(key)}</Key><Size>{len(self.objects[key])}</Size>"
            f"<ETag>&quot;{hashlib.md5(self.objects[key]).hexdigest()}&quot;</ETag></Contents>"
            for key in keys[begin : begin + self.page]
        )
        body = f"<ListBucketResult><IsTruncated>{str(bool(more)).lower()}</IsTruncated>{more}{contents}</ListBucketResult>"
        request.reply(200, {"Content-Type": "application/xml"}, body.encode())

    def refusal(self, request):
        """The error code of a request that is not signed right, by AWS's description of its signature, version 4."""
        key_id, secret, token = self.keys
        header = request.headers.get("Authorization", "")
        if not header.startswith("AWS4-HMAC-SHA256 "):
            return "AccessDenied"
        fields = dict(field.strip().split("=", 1) for field in header.removeprefix("AWS4-HMAC-SHA256 ").split(","))
        credential, date, region, service, end = fields["Credential"].split("/")
        signed = fields["SignedHeaders"].split(";")
        if credential != key_id or (service, end) != ("s3", "aws4_request"):
            return "InvalidAccessKeyId"
        if token != request.headers.get("x-amz-security-token") or (token and "x-amz-security-token" not in signed):
            return "InvalidToken"
        stamp = datetime.datetime.strptime(request.headers["x-amz-date"], "%Y%m%dT%H%M%SZ")
        if abs((datetime.datetime.now(datetime.timezone.utc).replace(tzinfo=None) - stamp).total_seconds()) > 900:
            return "RequestTimeTooSkewed"
        if not {"host", "x-amz-date", "x-amz-content-sha256"} <= set(signed) or signed != sorted(signed):
            return "AccessDenied"
        url = urllib.parse.urlsplit(request.path)
        pairs = urllib.parse.parse_qsl(url.query, keep_blank_values=True)
        quote = lambda text: urllib.parse.quote(text, safe="-_.~")  # noqa: E731
        canonical = "\n".join(
            [
                request.command,
                urllib.parse.quote(urllib.parse.unquote(url.path), safe="/-_.~"),
                "&".join(f"{name}={value}" for name, value in sorted((quote(n), quote(v)) for n, v in pairs)),
                *(f"{name}:{' '.join(request.headers[name].split())}" for name in signed),
                "",
                ";".join(signed),
                request.headers["x-amz-content-sha256"],
            ]
        )
        scope = f"{date}/{region}/{service}/{end}"
        digest = hashlib.sha256(canonical.encode()).hexdigest()
        text = "\n".join(["AWS4-HMAC-SHA256", request.headers["x-amz-date"], scope, digest])
        key = ("AWS4" + secret).encode()
        for part in (date, region, service, end):
            key = hmac.new(key, part.encode(), hashlib.sha256).digest()
        expected = hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
        return None if hmac.compare_digest(expected, fields["Signature"]) else "SignatureDoesNotMatch"
