# SPDX-License-Identifier: Apache-2.0
"""A Python package index on 127.0.0.1 that fetches from other indexes and caches the files.

pip caches a download only if the index permits it, which not every index does. pip's own cache
would also keep packages that pip has built, so that a missing compiler would go unnoticed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import html
import http.client
import http.server
import re
import ssl
import tempfile
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from lab.bare.store import Store

PYPI = "https://pypi.org/simple"
_ANCHOR = re.compile(r'<a\b[^>]*?\bhref="([^"]+)"([^>]*)>([^<]*)</a>')
# pip needs this attribute of a link on an index's page as well.
_PYTHONS = re.compile(r'data-requires-python="[^"]*"')
_PAGE = re.compile(r"/(\d+)/([A-Za-z0-9._-]+)/?")
_FILE = re.compile(r"/file/([0-9a-f]{64})/([0-9a-f]+)/([^/]+)")
_TIMEOUT_S = 120.0


@dataclasses.dataclass(frozen=True, slots=True)
class Upstream:
    """The URLs of the indexes to fetch from.

    ``certificates``: a file with trusted certificates, ``None`` for the system's; ``proxy``: the
    URL of the proxy to use, ``None`` for that of the environment.
    """

    indexes: tuple[str, ...]
    certificates: str | None = None
    proxy: str | None = None

    def open(self, url: str) -> contextlib.closing[http.client.HTTPResponse]:
        request = urllib.request.Request(url, headers={"Accept": "text/html"})
        opener = _opener(self.certificates, self.proxy)
        return contextlib.closing(opener.open(request, timeout=_TIMEOUT_S))


@functools.cache  # to read the certificates takes longer than a page
def _opener(certificates: str | None, proxy: str | None) -> urllib.request.OpenerDirector:
    context = ssl.create_default_context(cafile=certificates)
    proxies = {"http": proxy, "https": proxy} if proxy else None
    return urllib.request.build_opener(
        urllib.request.HTTPSHandler(context=context), urllib.request.ProxyHandler(proxies)
    )


@dataclasses.dataclass(frozen=True, slots=True)
class Served:
    """A running index on this machine.

    ``addresses``: its URLs, one for each upstream index. ``fetched``: the names of the files that
    it has fetched so far because they were not in the cache.
    """

    addresses: tuple[str, ...]
    fetched: list[str]


@contextlib.contextmanager
def serving(upstream: Upstream, store: Store) -> Iterator[Served]:
    """Serve a local index while the block runs; *store* is its cache."""
    fetched: list[str] = []

    class Handler(_Handler):
        pass

    Handler.upstream, Handler.store, Handler.fetched = upstream, store, fetched
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        port = server.server_address[1]
        numbers = range(len(upstream.indexes))
        yield Served(tuple(f"http://127.0.0.1:{port}/{number}" for number in numbers), fetched)
    finally:
        server.shutdown()
        server.server_close()


def page(text: str, url: str) -> str:
    """Return an index's page for one project with links to the local index.

    A link without a digest stays as it is, because the file could not be verified in the cache.
    """
    lines = ["<!DOCTYPE html>"]
    for address, rest, name in _ANCHOR.findall(text):
        absolute = urllib.parse.urljoin(url, html.unescape(address))
        place, _, fragment = absolute.partition("#")
        if match := re.fullmatch(r"sha256=([0-9a-f]{64})", fragment):
            file = urllib.parse.unquote(place.rpartition("/")[2])
            encoded = place.encode().hex()
            absolute = f"/file/{match[1]}/{encoded}/{urllib.parse.quote(file)}#{fragment}"
        pythons = _PYTHONS.search(rest)
        lines.append(
            f'<a href="{html.escape(absolute)}" {pythons[0] if pythons else ""}>{name}</a><br>'
        )
    return "\n".join(lines) + "\n"


class _Handler(http.server.BaseHTTPRequestHandler):
    upstream: Upstream
    store: Store
    fetched: list[str]

    def do_GET(self) -> None:
        path = urllib.parse.urlsplit(self.path).path
        try:
            if match := _FILE.fullmatch(path):
                self._file(*match.groups())
            elif (match := _PAGE.fullmatch(path)) and int(match[1]) < len(self.upstream.indexes):
                self._page(self.upstream.indexes[int(match[1])], match[2])
            else:
                self.send_error(404)
        except urllib.error.HTTPError as error:
            self.send_error(error.code)
        except (OSError, ValueError) as error:
            self.send_error(502, explain=f"{path}: {error}")

    def _page(self, index: str, name: str) -> None:
        url = f"{index.rstrip('/')}/{name}/"
        with self.upstream.open(url) as answer:
            text = page(answer.read().decode(), answer.url)
        self._send(text.encode(), "text/html; charset=utf-8")

    def _file(self, digest: str, encoded: str, quoted: str) -> None:
        name = urllib.parse.unquote(quoted)
        if "/" in name or name.startswith("."):
            raise ValueError(f"{name!r} is not the name of a package file")
        file = self.store.find(name)
        if file is None or not file.name.endswith(digest):
            file = self._fetch(name, digest, bytes.fromhex(encoded).decode())
        self._send(file.read_bytes(), "application/octet-stream")

    def _fetch(self, name: str, digest: str, url: str) -> Path:
        self.store.folder.mkdir(parents=True, exist_ok=True)
        with self.upstream.open(url) as answer:
            content = answer.read()
        if hashlib.sha256(content).hexdigest() != digest:
            raise ValueError(f"{url} does not have the digest that the index says: {digest}")
        with tempfile.NamedTemporaryFile(dir=self.store.folder, prefix=".", suffix=".new") as file:
            file.write(content)
            file.flush()
            self.fetched.append(name)
            return self.store.put(name, Path(file.name))

    def _send(self, content: bytes, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *arguments: object) -> None:
        """Log nothing, because the terminal shows the command's output."""
