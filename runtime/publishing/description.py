"""What a runtime says about itself in Redis, beside its tree."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from importlib.metadata import version as installed_version

from radix import Cause
from runtime.publishing.publisher import Description
from runtime.services.service_context import ServiceContext


def describe(shared: ServiceContext, target: str) -> Description:
    """Registration, counters and sessions; safe to call from the publisher's thread.

    Args:
        target: where gRPC clients connect to.
    """
    runtime = {
        **asdict(shared.info),
        "grpc": target,
        "pid": os.getpid(),
        "version": installed_version("radixloop"),
        "block_size": shared.config.block_size,
        "num_blocks": shared.num_blocks,
    }
    sessions = {
        session.id if session.owner is None else json.dumps(session.key): {
            "tokens": len(session),
            "salt": session.namespace.salt,
            "adapter": session.namespace.adapter,
            "busy": session.busy,
        }
        for session in shared.sessions
    }
    counters = asdict(shared.engine.counters)
    missed = counters.pop("missed_tokens")
    del missed[Cause.CACHED]
    counters |= {f"missed_{cause.value}_tokens": tokens for cause, tokens in missed.items()}
    if shared.engine.tiers is not None:
        for tier in shared.engine.tiers.books().tiers:
            counters |= {f"{tier.name}_blocks": tier.blocks, f"{tier.name}_used_blocks": tier.used_blocks}
    return Description(runtime=runtime, counters=counters, sessions=sessions)
