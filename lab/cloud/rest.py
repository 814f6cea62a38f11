# SPDX-License-Identifier: Apache-2.0
"""Sends requests to the lab's APIs, where a command line client would be too slow."""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from typing import Any

from lab.cloud import settings

_VERSIONS = {"nova-api": "compute 2.96", "placement": "placement 1.39"}
_TIMEOUT_S = 60


class RequestFailed(Exception):
    def __init__(self, method: str, url: str, status: int, text: str) -> None:
        super().__init__(f"{method} {url}: {status} {text}")
        self.status = status


class Client:
    """A client of all OpenStack services with the rights of the cloud's admin, for all threads."""

    def __init__(self, lab: settings.Lab) -> None:
        self._lab = lab
        self._lock = threading.Lock()
        self._token: str | None = None

    def get(self, service: str, path: str) -> Any:
        return self.request(service, "GET", path)

    def post(self, service: str, path: str, body: Any) -> Any:
        return self.request(service, "POST", path, body)

    def request(self, service: str, method: str, path: str, body: Any = None) -> Any:
        """Send a request, and return the answer parsed from JSON, ``None`` if it is empty.

        :param service: its name in :class:`lab.cloud.settings.Ports`, with dashes
        :param body: sent as JSON, or unchanged if it is bytes
        """
        headers = {"X-Auth-Token": self._authenticated()}
        if service in _VERSIONS:
            headers["OpenStack-API-Version"] = _VERSIONS[service]
        return _send(self._lab.url(service) + path, method, headers, body)[0]

    def _authenticated(self) -> str:
        with self._lock:
            if self._token is None:
                user = {
                    "name": "admin",
                    "domain": {"id": "default"},
                    "password": self._lab.password,
                }
                scope = {"project": {"name": "admin", "domain": {"id": "default"}}}
                identity = {"methods": ["password"], "password": {"user": user}}
                url = self._lab.url("keystone") + "/v3/auth/tokens"
                body = {"auth": {"identity": identity, "scope": scope}}
                self._token = _send(url, "POST", {}, body)[1]
            return self._token


def answers(url: str) -> bool:
    """Return whether a service answers GET *url* with a status below 500."""
    try:
        _send(url, "GET", {}, None)
    except RequestFailed as error:
        return error.status < 500
    except OSError:
        return False
    return True


def _send(url: str, method: str, headers: dict[str, str], body: Any) -> tuple[Any, str]:
    """Send a request; return the answer parsed from JSON, and its X-Subject-Token or ''."""
    binary = isinstance(body, bytes)
    content = "application/octet-stream" if binary else "application/json"
    data = body if binary or body is None else json.dumps(body).encode()
    headers = {"Accept": "application/json", "Content-Type": content, **headers}
    request = urllib.request.Request(url, data, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as response:
            text = response.read()
            return (json.loads(text) if text else None), response.headers["X-Subject-Token"] or ""
    except urllib.error.HTTPError as error:
        text = error.read().decode(errors="replace")[:500]
        raise RequestFailed(method, url, error.code, text) from error
