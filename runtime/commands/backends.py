"""`radix-runtime backends`: which attention back ends serve here, and what stands in the way of the others."""

from __future__ import annotations

from typing import Annotated

import typer


def backends(
    dtype: Annotated[str, typer.Option(metavar="DTYPE", help="As for serve.")] = "auto",
    device: Annotated[str, typer.Option(metavar="DEVICE", help="As for serve.")] = "auto",
    block_size: Annotated[int, typer.Option(min=1, max=1024, metavar="TOKENS", help="As for serve.")] = 16,
    head_dim: Annotated[int, typer.Option(min=1, metavar="N", help="Of keys and values.")] = 128,
    window: Annotated[bool, typer.Option("--window", help="Some layers have a sliding window.")] = False,
    softcap: Annotated[bool, typer.Option("--softcap", help="Some layers cap their scores.")] = False,
    sinks: Annotated[bool, typer.Option("--sinks", help="Some layers have attention sinks.")] = False,
) -> None:
    """List the attention back ends in the order in which serve would take them, for a model as described.

    On a GPU each that could serve is tried on a small step and compared with the reference.

    Examples:

        radix-runtime backends

        radix-runtime backends --device cuda --block-size 256 --softcap
    """
    # Loading torch takes seconds, so it waits until the options are known to be good.
    import torch
    from rich.console import Console
    from rich.table import Table

    from runtime.attention import Needs, reads_in_place, survey
    from runtime.attention.interface import AttentionOptions
    from runtime.errors import InvalidRequest
    from runtime.kv.precision import KVFormat, LayerShape
    from runtime.models.loader import pick_device, pick_dtype

    try:
        target = pick_device(device)
        weights = pick_dtype(dtype, target)
    except InvalidRequest as error:
        raise typer.BadParameter(str(error)) from None
    options = AttentionOptions(
        scale=1.0,
        window=1 if window else None,
        softcap=1.0 if softcap else None,
        sinks=torch.zeros(1) if sinks else None,
    )
    needs = Needs.of(
        [LayerShape(0, 1, head_dim, head_dim)],
        [options],
        device=target,
        dtype=weights,
        kv_format=KVFormat.dense(weights),
        block_size=block_size,
    )
    table = Table("back end", "pages", "here", title=f"{weights} on {target}, pages of {block_size}")
    for name, obstacle in survey(needs).items():
        table.add_row(name, "in place" if reads_in_place(name, block_size) else "gathered", obstacle or "serves")
    Console(width=120).print(table)
