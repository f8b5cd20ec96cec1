"""A model's config.json as checked fields: every complaint names the field and the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from radix.errors import RadixError
from radix.gguf_config import MAGIC, BadGguf, gguf_config

# Where multimodal models keep the config of their language model.
_NESTED = ("text_config", "llm_config", "language_config")


class ConfigError(RadixError):
    """A model's config that memory cannot be planned from; the message names the field and the file."""


class Fields:
    """The fields of one config.

    Args:
        values: the decoded JSON object.
        source: names the config in messages.
    """

    def __init__(self, values: dict[str, Any], source: str) -> None:
        self.source = source
        self.values = values

    def error(self, message: str) -> ConfigError:
        return ConfigError(f"{self.source}: {message}")

    def get(self, *names: str) -> Any:
        """Return the first of these fields that is there and not null; None when none is."""
        return next((self.values[name] for name in names if self.values.get(name) is not None), None)

    def optional(self, *names: str) -> int | None:
        """Return the first of these fields as a whole number from 1; None when none is there. Raises ConfigError."""
        for name in names:
            value = self.values.get(name)
            if value is None:
                continue
            if type(value) is not int or value < 1:
                raise self.error(f"{name} is {json.dumps(value)}: it must be a whole number from 1")
            return value
        return None

    def require(self, meaning: str, *names: str) -> int:
        """As `optional`, for a field that must be there. `meaning` explains it."""
        value = self.optional(*names)
        if value is None:
            others = f" (nor {', '.join(names[1:])})" if len(names) > 1 else ""
            raise self.error(f"{names[0]} is missing{others}: {meaning} cannot be known without it")
        return value


def read_config(model: str) -> Fields:
    """Read a config from a folder with a config.json, a JSON file, a GGUF file, or inline JSON.

    Raises:
        ConfigError: not there, not JSON, or no object.
    """
    if model.lstrip().startswith("{"):
        return _decode(model, "--config")
    path = Path(model)
    if path.is_dir():
        path = path / "config.json"
        if not path.is_file():
            raise ConfigError(f"{model}: the folder has no config.json")
    if not path.exists():
        raise ConfigError(
            f"{model}: no such file or folder (hub names are not looked up: give a folder on this machine)"
        )
    try:
        with path.open("rb") as file:
            if file.read(len(MAGIC)) == MAGIC:
                return Fields(gguf_config(path), str(path))
        text = path.read_text(encoding="utf-8")
    except BadGguf as bad:
        raise ConfigError(f"{path}: {bad}") from None
    except (OSError, UnicodeDecodeError) as failed:
        raise ConfigError(f"{path}: cannot be read as a config ({failed})") from None
    return _decode(text, str(path))


def language_model(fields: Fields) -> Fields:
    """Return the fields of the language model inside a multimodal config, or `fields` itself. Raises ConfigError."""
    for name in _NESTED:
        nested = fields.values.get(name)
        if nested is None:
            continue
        if not isinstance(nested, dict):
            raise fields.error(f"{name} is no JSON object")
        return Fields(nested, f"{fields.source}: {name}")
    return fields


def _decode(text: str, source: str) -> Fields:
    try:
        values = json.loads(text)
    except json.JSONDecodeError as bad:
        raise ConfigError(f"{source}: not JSON at line {bad.lineno}, column {bad.colno} ({bad.msg})") from None
    except (ValueError, RecursionError) as bad:
        raise ConfigError(f"{source}: not JSON that can be read ({bad})") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{source}: no JSON object, so no model config")
    return Fields(values, source)
