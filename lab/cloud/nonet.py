# SPDX-License-Identifier: Apache-2.0
"""A server that answers as a Neutron without networks and ports, as Nova needs one.

Run it as ``python nonet.py PORT``; it uses the standard library only. Servers are created with
``--nic none``; without a network endpoint Nova would answer requests for servers with status 500.
"""

from __future__ import annotations

import http.server
import json
import re
import sys
from typing import Any


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self, status: int, body: Any = None) -> None:
        data = b"" if body is None else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        path = self.path.partition("?")[0].rstrip("/")
        if not path:
            link = {"rel": "self", "href": f"http://{self.headers['Host']}/v2.0/"}
            version = {"id": "v2.0", "status": "CURRENT", "links": [link]}
            return self.answer(200, {"versions": [version]})
        # Nova asks this before it creates a port, which it then does not.
        if re.fullmatch(r"/v2\.0/quotas/[^/]+", path):
            return self.answer(200, {"quota": {}})
        collection = re.fullmatch(r"/v2\.0/([a-z-]+)(\.json)?", path)
        if collection:
            return self.answer(200, {collection[1].replace("-", "_"): []})
        error = {"type": "NotFound", "message": self.path, "detail": ""}
        return self.answer(404, {"NeutronError": error})

    def do_DELETE(self) -> None:
        self.answer(204)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        error = {"type": "Conflict", "message": "this lab has no networks", "detail": ""}
        self.answer(409, {"NeutronError": error})

    do_PUT = do_POST


if __name__ == "__main__":
    http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
