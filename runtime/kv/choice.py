"""The format that a model's pool gets by what a user asked for."""

from __future__ import annotations

import logging

from radix.kv_bytes import HALVES
from runtime.errors import InvalidRequest
from runtime.kv.measured import measured_once
from runtime.kv.precision import DENSE, KVFormat
from runtime.kv.sensitivity import choose_raised, measure, sample_tokens
from runtime.kv.settings import KVSettings, parse_layers
from runtime.models.loaded_model import LoadedModel

log = logging.getLogger(__name__)


def pool_format(loaded: LoadedModel, settings: KVSettings, weights_digest: str) -> KVFormat:
    """The format of a model's pool; weights_digest may be empty.

    Raises InvalidRequest as `KVSettings.check` does, and for a layer that the model lacks.
    """
    own = loaded.kv_format
    kv = own.keys if settings.kv == "auto" else settings.kv
    names = [kv if name is None else own.keys if name == "auto" else name for name in (settings.keys, settings.values)]
    plain = KVFormat(names[0], names[1])
    wanted = parse_layers(settings.sensitive)
    for layer, _ in wanted or ():
        if layer >= len(loaded.layers):
            raise InvalidRequest("kv_sensitive_layers", layer, f"the last layer is {len(loaded.layers) - 1}")
    if not plain.packs:
        return plain
    if wanted is None:
        tokens = sample_tokens(loaded.tokenizer, loaded.info.vocab_size)
        device, count = loaded.model.device, len(loaded.layers)
        digest = f"{weights_digest} {loaded.info.dtype} {device.type}" if weights_digest else ""
        costs = measured_once(digest, plain, lambda: measure(loaded.forward, plain, count, tokens, device))
        wanted = choose_raised(costs, plain, loaded.layers)
    packed = {half for half in HALVES if plain.at(0, half) not in DENSE}
    found = plain.raising(*(place for place in wanted if place[1] in packed))
    if found.raised:
        named = [f"{half} of layer {layer} at {found.at(layer, half)}" for layer, half in sorted(found.raised)]
        log.info("%s KV, but %s", plain.name, ", ".join(named))
    return found
