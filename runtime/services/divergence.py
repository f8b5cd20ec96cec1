"""Where a prompt parted from what is stored, for a person."""

from __future__ import annotations

from radixloop.v1 import common_pb2

from radix import Verdict
from runtime.histories.drift import (
    DROPS_REASONING,
    READS_THE_CLOCK,
    REWRITES_CALLS,
    REWRITES_HISTORY,
    TemplateDrift,
)
from runtime.prompting.prompts import EncodedPrompt, PromptEncoder
from runtime.services.convert import Tokens
from runtime.services.verdicts import BRANCHES_TOLD, diverged

_KINDS = {
    DROPS_REASONING: common_pb2.DRIFT_KIND_DROPS_REASONING,
    REWRITES_HISTORY: common_pb2.DRIFT_KIND_REWRITES_HISTORY,
    READS_THE_CLOCK: common_pb2.DRIFT_KIND_READS_THE_CLOCK,
    REWRITES_CALLS: common_pb2.DRIFT_KIND_REWRITES_CALLS,
}


async def divergence(
    encoder: PromptEncoder, tokens: Tokens, prompt: EncodedPrompt | None, verdict: Verdict | None
) -> common_pb2.Divergence | None:
    """What a verdict has to tell; None where nothing else was stored.

    Args:
        tokens: of the whole prompt.
        prompt: what they were encoded from; None for a session, of whose chat only the last turn is known.
    """
    parted = None if verdict is None else diverged(verdict)
    if parted is None:
        return None
    found = await encoder.parting(prompt, tokens, parted.start, parted.beside[:BRANCHES_TOLD])
    told = common_pb2.Divergence(position=parted.start, shared=found.shared, prompt=found.prompt, stored=found.stored)
    if found.place is not None:
        told.message_index = found.place.message
        told.role = found.place.role
        if found.place.offset is not None:
            told.offset = found.place.offset
    if found.drift is not None:
        told.template.CopyFrom(drift_message(found.drift))
    return told


def drift_message(drift: TemplateDrift) -> common_pb2.TemplateDrift:
    return common_pb2.TemplateDrift(kind=_KINDS[drift.kind], detail=drift.detail, message_index=drift.message)
