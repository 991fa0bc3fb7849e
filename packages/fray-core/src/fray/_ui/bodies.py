"""What a request brings with it."""

import json
from typing import Any

from aiohttp import web


async def json_object(request: web.Request) -> dict[str, Any] | None:
    """Return the object that a body holds; None where it holds anything else."""
    try:
        body = json.loads(await request.read())
    except (ValueError, RecursionError):
        return None
    return body if isinstance(body, dict) else None
