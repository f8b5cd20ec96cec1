"""The tokenizer's files in one archive, for a router that renders and tokenises by itself."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from smg_grpc_proto.generated import common_pb2

from runtime.models.loaded_model import LoadedModel

_PIECE_BYTES = 256 * 1024
# Archives of the same files must be the same bytes, whenever and wherever they are made.
_TIME = (1980, 1, 1, 0, 0, 0)


def tokenizer_bundle(loaded: LoadedModel) -> bytes:
    """A zip archive of the tokenizer, its chat template and the model's configs; takes up to seconds.

    Written anew from what is loaded: a .gguf file has no such files to read.
    """
    with TemporaryDirectory() as folder:
        loaded.tokenizer.save_pretrained(folder)
        files = {path.name: path.read_bytes() for path in Path(folder).iterdir() if path.is_file()}
    files["config.json"] = _json_bytes(loaded.model.config)
    generation = getattr(loaded.model, "generation_config", None)
    if generation is not None:
        files["generation_config.json"] = _json_bytes(generation)
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as zipped:
        for name in sorted(files):
            entry = zipfile.ZipInfo(name, _TIME)
            entry.compress_type = zipfile.ZIP_DEFLATED
            zipped.writestr(entry, files[name])
    return archive.getvalue()


def chunks(archive: bytes) -> Iterator[common_pb2.GetTokenizerChunk]:
    """The archive in pieces; the last carries the SHA-256 of the whole, in hex."""
    digest = hashlib.sha256(archive).hexdigest()
    for start in range(0, len(archive), _PIECE_BYTES):
        end = start + _PIECE_BYTES
        yield common_pb2.GetTokenizerChunk(data=archive[start:end], sha256=digest if end >= len(archive) else "")


def _json_bytes(config: object) -> bytes:
    values = config.to_dict()  # type: ignore[attr-defined]
    # Where the files lay on this machine is nobody's business.
    values.pop("_name_or_path", None)
    return json.dumps(values, indent=2, sort_keys=True, default=str).encode()
