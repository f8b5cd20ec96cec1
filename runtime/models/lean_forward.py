"""The forward pass of a Llama-like decoder without the module calls around it.

This is the same computation (RMS norm, joint query-key-value product, rotation, attention, gated block, residual
sums in place) over the same weights, for models that have exactly these parts. Which ones do is read off their
structure and then proved: the probe at load compares the logits with the model's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from runtime.attention.hook import LayerCall
from runtime.attention.interface import AttentionOptions
from runtime.errors import ModelRefused
from runtime.execution.batch import StepPlan
from runtime.models.decoder_ops import Activation, DecoderOps, HeadNorm, RmsNorm, TorchOps
from runtime.models.linear_groups import GroupMember, LinearGroup
from runtime.models.packed_product import Product

LINEAR = (nn.Linear, GroupMember)


@dataclass(frozen=True, slots=True)
class Layer:
    """One decoder layer. head_norm is of queries and keys together."""

    index: int
    before_attention: RmsNorm
    qkv: Product
    head_norm: HeadNorm | None
    out: Product
    before_mlp: RmsNorm
    gate_up: Product
    activation: Activation
    down: Product
    heads: int
    kv_heads: int
    options: AttentionOptions


class LeanForward:
    """Stands in for a model's forward. Raises ModelRefused, saying why, for a model that is not built like this.

    options: how each layer attends, in layer order, as the model's own layers were seen to ask for it. ops: what is
    done between the products.
    """

    name = "lean"

    def __init__(
        self, network: Any, options: tuple[AttentionOptions, ...], head_dim: int, ops: DecoderOps | None = None
    ) -> None:
        self._network = network
        self._dim = head_dim
        self._ops = ops or TorchOps()
        decoder = network.get_decoder()
        _only(network, "the model", lm_head=LINEAR, **{network.base_model_prefix: nn.Module})
        parts = {"embed_tokens": nn.Embedding, "layers": nn.ModuleList, "norm": nn.Module, "rotary_emb": nn.Module}
        _only(decoder, "the decoder", **parts)
        self._embedding: torch.Tensor = decoder.embed_tokens.weight
        self._rotary = decoder.rotary_emb
        self._norm = _rms_norm(decoder.norm)
        self._head = network.lm_head.forward
        self._layers = [self._layer(module, index, options[index]) for index, module in enumerate(decoder.layers)]

    def with_options(self, options: tuple[AttentionOptions, ...]) -> LeanForward:
        """The same weights under other windows or scales."""
        return LeanForward(self._network, options, self._dim, self._ops)

    def _layer(self, module: Any, index: int, options: AttentionOptions) -> Layer:
        where = f"layer {index}"
        _only(
            module,
            where,
            input_layernorm=nn.Module,
            self_attn=nn.Module,
            post_attention_layernorm=nn.Module,
            mlp=nn.Module,
        )
        attention, mlp = module.self_attn, module.mlp
        normed = hasattr(attention, "q_norm")
        norms = {"q_norm": nn.Module, "k_norm": nn.Module} if normed else {}
        joint = GroupMember
        _only(attention, f"{where}'s attention", q_proj=joint, k_proj=joint, v_proj=joint, o_proj=LINEAR, **norms)
        _only(mlp, f"{where}'s MLP", gate_proj=joint, up_proj=joint, down_proj=LINEAR, act_fn=nn.Module)
        heads = attention.q_proj.out_features // self._dim
        kv_heads = attention.k_proj.out_features // self._dim
        return Layer(
            index=index,
            before_attention=_rms_norm(module.input_layernorm),
            qkv=_joint(where, attention.q_proj, attention.k_proj, attention.v_proj),
            head_norm=_head_norm(attention, heads, kv_heads) if normed else None,
            out=attention.o_proj.forward,
            before_mlp=_rms_norm(module.post_attention_layernorm),
            gate_up=_joint(where, mlp.gate_proj, mlp.up_proj),
            activation=Activation.of(mlp.act_fn, self._embedding.dtype),
            down=mlp.down_proj.forward,
            heads=heads,
            kv_heads=kv_heads,
            options=options,
        )

    def __call__(self, plan: StepPlan, attend: LayerCall, rows: torch.Tensor) -> torch.Tensor:
        ops, layers = self._ops, self._layers
        hidden = functional.embedding(plan.input_ids[0], self._embedding)
        cos, sin = self._rotary(hidden[None], position_ids=plan.position_ids)
        cos, sin = ops.angles(cos[0], sin[0])
        norms = [*(layer.before_attention for layer in layers), self._norm]
        normed = ops.norm(hidden, norms[0])
        for layer in layers:
            attended = self._attend(layer, normed, cos, sin, attend)
            if layer is layers[-1]:
                # Behind the last attention a token meets no other: what nobody asked for ends here.
                attended, hidden = attended.index_select(0, rows), hidden.index_select(0, rows)
            normed = ops.add_norm(hidden, layer.out(attended), layer.before_mlp)
            inner = ops.gate(layer.gate_up(normed), layer.activation)
            normed = ops.add_norm(hidden, layer.down(inner), norms[layer.index + 1])
        logits: torch.Tensor = self._head(normed)
        return logits

    def _attend(
        self, layer: Layer, normed: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, attend: LayerCall
    ) -> torch.Tensor:
        joint = layer.qkv(normed).view(len(normed), -1, self._dim)
        turned = layer.heads + layer.kv_heads
        placed = self._ops.rotate(joint, turned, layer.head_norm, cos, sin)
        out = attend(layer.index, placed[:, : layer.heads], placed[:, layer.heads :], joint[:, turned:], layer.options)
        return out.reshape(len(normed), -1)


def _only(module: nn.Module, where: str, **children: type[nn.Module] | tuple[type[nn.Module], ...]) -> None:
    """Refuse a module that has other children than these, or of other classes, or parameters of its own."""
    found = dict(module.named_children())
    if set(found) != set(children):
        odd = sorted(set(found) ^ set(children))
        raise ModelRefused(f"{where} is not built like a Llama's: {', '.join(odd)} present or lacking")
    for name, wanted in children.items():
        child = found[name]
        if not isinstance(child, wanted):
            raise ModelRefused(f"{where}'s {name} is of class {type(child).__name__}")
        if child._forward_hooks or child._forward_pre_hooks:
            raise ModelRefused(f"{where}'s {name} has hooks")
    own = [name for name, _ in module.named_parameters(recurse=False)]
    if own:
        raise ModelRefused(f"{where} has parameters of its own: {', '.join(own)}")


def _rms_norm(module: nn.Module) -> RmsNorm:
    """The norm's numbers, once it was seen to do what RmsNorm does."""
    weight = getattr(module, "weight", None)
    eps = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    name = type(module).__name__
    if not isinstance(weight, torch.Tensor) or not isinstance(eps, float) or len(list(module.parameters())) != 1:
        raise ModelRefused(f"{name} is no RMS norm with a weight and an epsilon")
    norm = RmsNorm(tuple(weight.shape), weight, eps)
    sample = torch.linspace(-2, 3, weight.numel(), dtype=weight.dtype, device=weight.device).view(weight.shape) * 0.01
    got, wanted = norm(sample).float(), module(sample).float()
    if not torch.allclose(got, wanted, rtol=2e-2 if weight.dtype.itemsize < 4 else 1e-4, atol=1e-5):
        raise ModelRefused(f"{name} is no RMS norm")
    return norm


def _head_norm(attention: Any, heads: int, kv_heads: int) -> HeadNorm:
    query, key = _rms_norm(attention.q_norm), _rms_norm(attention.k_norm)
    if query.eps != key.eps or query.shape != key.shape or query.shape != (attention.head_dim,):
        raise ModelRefused("the norms of queries and keys are not over single heads")
    return HeadNorm(torch.cat([query.weight.expand(heads, -1), key.weight.expand(kv_heads, -1)]), query.eps)


def _joint(where: str, *members: GroupMember) -> LinearGroup:
    group = members[0].group
    if list(members) != group.members:
        raise ModelRefused(f"{where} shares an input between other layers than a Llama's")
    return group
