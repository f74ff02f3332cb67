"""JSON objects in the texts of models, such as the arguments of a call."""

import json
from typing import Any


def json_object(text: str) -> dict[str, Any] | None:
    """Return the JSON object of a text; None: it is no complete JSON object."""
    if not text.rstrip().endswith("}"):
        return None
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None
