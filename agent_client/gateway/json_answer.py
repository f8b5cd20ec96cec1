"""What is sent as JSON, whatever a model wrote into it or a request brought along."""

from __future__ import annotations

import json
import math
from typing import Any

from starlette.responses import JSONResponse


def json_text(content: Any) -> str:
    """UTF-8 can always be made of it, and any reader of JSON takes it.

    Half a surrogate pair, which a model may write as an escape, stays one. A number beyond what a float holds, which is
    legal in JSON, becomes null.
    """
    try:
        text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except ValueError:
        return json_text(_finite(content))
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(content, separators=(",", ":"))
    return text


class JsonAnswer(JSONResponse):
    """An answer that is sent whole."""

    def render(self, content: Any) -> bytes:
        return json_text(content).encode()


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
