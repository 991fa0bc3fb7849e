"""Answers of a server to the script of a page."""

import hashlib

from aiohttp import web


def part_answer(html: str, request: web.BaseRequest) -> web.Response:
    """Answer with a part of a page; with nothing where the browser has it as it is."""
    body = html.encode()
    etag = f'"{hashlib.sha256(body).hexdigest()[:24]}"'
    if request.headers.get("If-None-Match") == etag:
        return web.Response(status=304, headers={"ETag": etag})
    response = web.Response(body=body, content_type="text/html", charset="utf-8", headers={"ETag": etag})
    response.enable_compression()
    return response
