# SPDX-License-Identifier: Apache-2.0
"""The snapshots of a cloud whose nova-computes are processes of their own, in one Glance."""

from __future__ import annotations

import io
from typing import Any, BinaryIO

from nova import exception
from nova.tests.fixtures import glance

from tests.cloud import wire

VERB = "image"


class Snapshots:
    """The answers of the Glance of the cloud's API to :class:`Images`.

    It keeps what is uploaded, as :class:`tests.cloud.fixtures.KeptUploads` lets it.
    """

    def __init__(self, images: glance.GlanceFixture) -> None:
        self._images = images

    def answer(self, method: str, image_id: str, *arguments: Any) -> Any:
        """Return what *method* returns, ``None`` if there is no such image."""
        if image_id not in self._images.images:
            return None
        return getattr(self, f"_{method}")(image_id, *arguments)

    def _show(self, image_id: str) -> dict[str, Any]:
        image: dict[str, Any] = self._images.show(None, image_id)
        return image

    def _update(self, image_id: str, metadata: dict[str, Any], content: bytes | None) -> Any:
        data = None if content is None else io.BytesIO(content)
        return self._images.update(None, image_id, metadata, data)

    def _content(self, image_id: str) -> bytes:
        return bytes(self._images._imagedata.get(image_id, b""))

    def _delete(self, image_id: str) -> bool:
        self._images.delete(None, image_id)
        return True


class Images(glance.GlanceFixture):  # type: ignore[misc]
    """Nova's stand-in for Glance in another process than the API's.

    It has the images that guests are started from; others it asks for.
    """

    link: wire.Link

    def show(self, context: Any, image_id: str, *args: Any, **kwargs: Any) -> dict[str, Any]:
        image: dict[str, Any] = (
            super().show(context, image_id) if image_id in self.images else self._ask(image_id)
        )
        return image

    def update(
        self,
        context: Any,
        image_id: str,
        metadata: dict[str, Any],
        data: BinaryIO | None = None,
        purge_props: bool = False,
    ) -> Any:
        content = data.read() if data is not None else None
        return self._ask(image_id, "update", metadata, content)

    def download(
        self,
        context: Any,
        image_id: str,
        data: BinaryIO | None = None,
        dst_path: str | None = None,
        trusted_certs: Any = None,
    ) -> None:
        own = self._imagedata.get(image_id)
        content: bytes = self._ask(image_id, "content") if own is None else own
        if data:
            data.write(content)
        elif dst_path:
            with open(dst_path, "wb") as file:
                file.write(content)

    def delete(self, context: Any, image_id: str) -> None:
        self._ask(image_id, "delete")

    def _ask(self, image_id: str, method: str = "show", *arguments: Any) -> Any:
        answer = self.link.ask(VERB, method, image_id, *arguments)
        if answer is None:
            raise exception.ImageNotFound(image_id=image_id)
        return answer
