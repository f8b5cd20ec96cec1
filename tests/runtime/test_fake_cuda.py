"""Steps over CUDA tensors that have a device and a shape and no numbers: no operation may meet tensors of two devices.

Needs a torch that is built for CUDA, and no GPU. Of the GPU's work nothing is computed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from radix import Copy
from runtime.attention.hook import HOOK, PagedStep
from runtime.attention.interface import AttentionBackend
from runtime.attention.reference import ReferenceAttention
from runtime.attention.sdpa import SdpaAttention
from runtime.attention.varlen import VarlenAttention
from runtime.execution.batch import BatchItem, StepPlan
from runtime.kv import rotation
from runtime.kv.kv_pool import KVPool
from runtime.kv.precision import KVFormat, LayerShape
from runtime.kv.writing import TorchWriter
from runtime.models.decoder_ops import TorchOps
from runtime.models.forward import Forward, ModelForward
from runtime.models.lean_forward import LeanForward
from runtime.models.linear_groups import LinearGroup
from runtime.models.probe import trace_layers
from runtime.tiers.narrow import NarrowPool

pytestmark = pytest.mark.skipif(not torch.backends.cuda.is_built(), reason="this torch is not built for CUDA")

DEVICE = torch.device("cuda:0")
BLOCKS, SIZE, VOCAB, DIM = 64, 16, 96, 16
FAMILIES: dict[str, dict[str, Any]] = {
    "Llama": {},
    "Qwen2": {},
    "Qwen3": {"head_dim": DIM},
    "Gemma2": {"head_dim": DIM, "sliding_window": 13},
}
DENSE = KVFormat.dense(torch.bfloat16)
FORMATS = {"bf16": DENSE, "int8-int4": KVFormat("int8", "int4"), "int4-fp8": KVFormat("int4", "fp8_e4m3")}


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    # Fake tensors cannot be pinned, and have no numbers by which a norm could be told from another function.
    monkeypatch.setattr(StepPlan, "to_device", lambda self, numbers: torch.from_numpy(numbers).to(self.device))
    monkeypatch.setattr(torch, "allclose", lambda *_, **__: True)
    rotation._matrix.cache_clear()
    with FakeTensorMode():
        yield
    rotation._matrix.cache_clear()


def make(family: str) -> Any:
    config = getattr(transformers, f"{family}Config")(
        vocab_size=VOCAB,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        **FAMILIES[family],
    )
    with torch.device(DEVICE):
        network: Any = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    network.eval()
    network.requires_grad_(False)
    network.set_attn_implementation(HOOK)
    return network


def join(network: nn.Module) -> None:
    """Llama's linear layers that share an input, as `group_linears` joins them when it can see that they do."""
    for module in network.modules():
        for names in (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj")):
            if all(isinstance(getattr(module, name, None), nn.Linear) for name in names):
                group = LinearGroup([getattr(module, name) for name in names])
                for name, member in zip(names, group.members, strict=True):
                    setattr(module, name, member)


@pytest.mark.parametrize("kept", FORMATS)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_step(family: str, kept: str) -> None:
    network = make(family)
    layers, options = trace_layers(network)
    forwards: list[Forward] = [ModelForward(network)]
    if family != "Gemma2":
        join(network)
        forwards.append(LeanForward(network, options, DIM, TorchOps()))
    backends: list[AttentionBackend] = [SdpaAttention(), ReferenceAttention()]
    if kept == "bf16" and family != "Gemma2":
        backends.append(VarlenAttention())
    pool = KVPool(layers, BLOCKS, SIZE, dtype=FORMATS[kept], device=DEVICE, fill=float("nan"))
    table = np.arange(20, dtype=np.int32)[::-1].copy()
    items = [
        BatchItem(np.ones(40, np.int32), 0, table[:5]),
        BatchItem(np.ones(1, np.int32), 33, table[5:9]),
        BatchItem(np.ones(3, np.int32), 20, table[10:14], 2),
    ]
    for forward in forwards:
        for backend in backends:
            plan = StepPlan(items, SIZE, BLOCKS, DEVICE)
            with torch.inference_mode():
                logits = forward(plan, PagedStep(pool, plan, backend, TorchWriter(pool)), plan.logit_rows)
            assert logits.device == DEVICE
            assert logits.shape == (4, VOCAB)


@pytest.mark.parametrize("place", ["cpu", "cuda:0"])
@pytest.mark.parametrize("kept", FORMATS)
def test_blocks_come_and_go(kept: str, place: str) -> None:
    shapes = [LayerShape(0, 2, DIM, DIM), LayerShape(1, 1, 24, 8)]
    pool = KVPool(shapes, BLOCKS, SIZE, dtype=FORMATS[kept], device=DEVICE)
    stores: list[Any] = [pool]
    if kept == "bf16":
        stores += [NarrowPool(pool, KVFormat(name, name)) for name in ("int8", "int4", "fp8_e4m3")]
    for store in stores:
        rows = torch.empty((3, store.block_bytes), dtype=torch.uint8, device=place)
        store.export_blocks([1, 2, 3], rows)
        store.import_blocks([4, 5, 6], rows)
    pool.copy([Copy(1, 2, 5), Copy(2, 3, 4)])
