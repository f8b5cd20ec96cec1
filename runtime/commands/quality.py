"""`radix-runtime quality`: what a pool's precision does to answers, in one table."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from radix.output import JSON_HELP, check_json_target, write_json
from radix.sizes import parse_tokens


def quality(
    kv_dtype: Annotated[
        str,
        typer.Option(
            metavar="NAME,...|all",
            help="Precisions to compare, of bf16, fp16, fp8_e4m3, int8 and int4; int8/int4 is keys/values.",
        ),
    ] = "all",
    model: Annotated[str, typer.Option(metavar="MODEL", help="As for serve.")] = "smollm2",
    dtype: Annotated[str, typer.Option(metavar="DTYPE", help="Of the weights, as for serve.")] = "auto",
    device: Annotated[str, typer.Option(metavar="DEVICE", help="As for serve.")] = "auto",
    attention: Annotated[str, typer.Option(metavar="NAME", help="As for serve.")] = "auto",
    kv_sensitive_layers: Annotated[str, typer.Option(metavar="auto|none|LIST", help="As for serve.")] = "auto",
    text: Annotated[
        str, typer.Option(metavar="NAME,...", help="prose, code, maths, chat, or text files.")
    ] = "prose,code,maths,chat",
    tokens: Annotated[str, typer.Option(metavar="TOKENS", help="Of all texts together, for each context.")] = "24k",
    contexts: Annotated[str, typer.Option(metavar="N,N,...", help="Lengths of the stretches of text.")] = "2048,8192",
    needles: Annotated[
        str, typer.Option(metavar="N,N,...|none", help="Lengths of contexts with five numbers to find again.")
    ] = "1024,2048,4096",
    calls: Annotated[int, typer.Option(min=0, metavar="N", help="Tool calls of recorded loops to write again.")] = 8,
    loops: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", show_default=False, help="Recorded loops, .jsonl or .jsonl.gz, for chat and calls."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", help="Draws the numbers to be found.")] = 0,
    json: Annotated[str | None, typer.Option(metavar="FILE", show_default=False, help=JSON_HELP)] = None,
) -> None:
    """Compare answers over quantised keys and values with those over an fp32 pool.

    Perplexity, divergence of the next token's probabilities and agreement on the likeliest one, on texts that come
    with Python and its packages; numbers found again at five depths; recorded tool calls written again; bytes, and
    speed. With the default model and all precisions it takes about 13 minutes on two cores: name fewer to be quicker.

    What it said of SmolLM2: int8 serves code, chat, maths and tools; int4 is for pools that must hold more tokens, and
    costs most in prose and in long code and chat. Other models differ (docs/capacity.md): measure yours.

    Examples:

        radix-runtime quality --kv-dtype int8,int4 --contexts 2048

        radix-runtime quality --kv-dtype all --json -

        radix-runtime quality --kv-dtype int8/int4 --text README.md --tokens 4k --contexts 1024
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from runtime.errors import RuntimeServiceError

    check_json_target(json)
    console = Console(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
    try:
        from runtime.kv.quality.report import QualityConfig, measure_quality, named_settings

        config = QualityConfig(
            settings=named_settings(kv_dtype, kv_sensitive_layers),
            kinds=[part.strip() for part in text.split(",")],
            contexts=[parse_tokens(part) for part in contexts.split(",")],
            tokens=parse_tokens(tokens),
            needle_contexts=[] if needles == "none" else [parse_tokens(part) for part in needles.split(",")],
            calls=calls,
            seed=seed,
            loops=loops,
        )
        from runtime.models.loader import load_model

        with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
            task = progress.add_task(f"loading {model}", total=1.0)
            loaded = load_model(model, dtype=dtype, device=device, attention=attention)
            result = measure_quality(
                loaded, config, lambda share, step: progress.update(task, completed=share, description=step)
            )
    except (RuntimeServiceError, ValueError) as error:
        typer.echo(f"radix-runtime quality: {error}", err=True)
        raise typer.Exit(2) from None
    if json is not None:
        write_json(json, result)
    if json != "-":
        _print(Console(), result)


def _print(console: Any, result: dict[str, Any]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    kinds = [text["kind"] for text in result["texts"]]
    answers = Table(
        "KV", title=f"{result['model']}, against an fp32 pool", box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0)
    )
    for column in ("perplexity", "change", *kinds, "KL", "top 1"):
        answers.add_column(column, justify="right")
    rest = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    rest.add_column("KV", min_width=max(len(row["kv_dtype"]) for row in result["dtypes"]))
    timed = [f"ms at {length:,}" for length in result["dtypes"][0]["decode_ms_by_context"]]
    for column in ("bytes", "of fp32", "needles", "valid calls", "same calls", *timed, "prefill a second"):
        rest.add_column(column, justify="right")
    for row in result["dtypes"]:
        answers.add_row(
            row["kv_dtype"],
            f"{row['perplexity']:.3f}",
            f"{row['perplexity_delta']:+.2%}",
            *(f"{_change(row, result['dtypes'][0], kind):+.2%}" for kind in kinds),
            f"{row['kl']:.5f}",
            f"{row['top1']:.2%}",
        )
        needles, calls = row["needles"], row["tool_calls"]
        rest.add_row(
            row["kv_dtype"],
            str(row["bytes_per_token"]),
            f"{row['share_of_fp32']:.3f}",
            f"{needles['found']}/{needles['asked']}" if needles else "-",
            f"{calls['valid']}/{calls['asked']}" if calls else "-",
            f"{calls['same']}/{calls['asked']}" if calls else "-",
            *(f"{ms:.1f}" for ms in row["decode_ms_by_context"].values()),
            f"{row['prefill_tokens_per_s']:.0f}",
        )
    console.print(answers)
    console.print(rest)
    for text in result["texts"]:
        console.print(f"{text['kind']}: {text['source']} (sha256 {text['sha256'][:16]}…)")


def _change(row: dict[str, Any], exact: dict[str, Any], kind: str) -> float:
    """How a text's perplexity changes, over all contexts."""
    import math

    def nats(of: dict[str, Any]) -> float:
        parts = [part for part in of["parts"] if part["text"] == kind]
        total: float = sum(p["tokens"] * math.log(p["perplexity"]) for p in parts)
        return total / sum(int(p["tokens"]) for p in parts)

    return math.exp(nats(row) - nats(exact)) - 1
