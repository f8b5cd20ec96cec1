"""`radix-runtime bench`: options, progress and tables."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from radix.errors import InvalidArgument
from radix.output import JSON_HELP, check_json_target, write_json
from radix.sizes import parse_tokens
from runtime.sizes import parse_size


def bench(
    model: Annotated[str, typer.Option(metavar="MODEL", help="As for serve.")] = "smollm2",
    dtype: Annotated[str, typer.Option(metavar="DTYPE", help="As for serve.")] = "auto",
    device: Annotated[str, typer.Option(metavar="DEVICE", help="As for serve.")] = "auto",
    attention: Annotated[str, typer.Option(metavar="NAME", help="As for serve.")] = "auto",
    deterministic: Annotated[bool, typer.Option("--deterministic", help="As for serve: what equal bits cost.")] = False,
    pool: Annotated[str, typer.Option(metavar="TOKENS", help="Size of the KV pool.")] = "100k",
    context: Annotated[str, typer.Option(metavar="TOKENS", help="Tokens before the decoded ones.")] = "2048",
    batches: Annotated[str, typer.Option(metavar="N,N,...", help="Decode batch sizes.")] = "1,2,4,8,16",
    steps: Annotated[int, typer.Option(min=1, metavar="N", help="Decode steps of each case.")] = 30,
    temperature: Annotated[
        float, typer.Option(min=0, metavar="T", help="Of all requests; 0 is greedy, which samples fastest.")
    ] = 0.0,
    host_cache: Annotated[str, typer.Option(metavar="SIZE", help="As for serve: what a host tier costs.")] = "0",
    json: Annotated[str | None, typer.Option(metavar="FILE", show_default=False, help=JSON_HELP)] = None,
) -> None:
    """Measure the engine in this process: what a step costs beside the model, decode by batch size, and prefill.

    The pool is full of agents' histories, all books are kept and every stream is read, as when serving; only the
    network is left out. Decode is measured with contexts of their own and with contexts that share all but their
    last tokens. With the default model on two cores it takes less than a minute.

    Examples:

        radix-runtime bench

        radix-runtime bench --batches 8 --json -

        radix-runtime bench --model gemma3-270m --pool 50k --context 1k
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    check_json_target(json)
    config = _config(pool, context, batches, steps, temperature, host_cache)
    # Loading torch takes seconds, so it waits until the options are known to be good.
    from runtime.bench import BenchConfig, run
    from runtime.errors import RuntimeServiceError
    from runtime.models.loader import load_model

    console = Console(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
    try:
        with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
            task = progress.add_task(f"loading {model}", total=1.0)
            loaded = load_model(model, dtype=dtype, device=device, attention=attention, deterministic=deterministic)
            result = run(
                loaded,
                BenchConfig(**config),
                lambda share, step: progress.update(task, completed=share, description=step),
            )
    except RuntimeServiceError as error:
        typer.echo(f"radix-runtime bench: {error}", err=True)
        raise typer.Exit(2) from None
    if json is not None:
        write_json(json, result)
    if json != "-":
        _print(Console(), result)


def _config(pool: str, context: str, batches: str, steps: int, temperature: float, host: str) -> dict[str, Any]:
    pool_tokens = _tokens(pool, "--pool")
    length = _tokens(context, "--context")
    sizes = tuple(dict.fromkeys(_tokens(part, "--batches") for part in batches.split(",")))
    if min(sizes) < 1 or length < 2:
        raise typer.BadParameter("must be at least 1, and a context 2 tokens", param_hint="--batches")
    needed = max(sizes) * (length + steps + 64) * 2
    if pool_tokens < needed:
        raise typer.BadParameter(
            f"{pool_tokens:,} tokens: {max(sizes)} contexts of {length:,} twice need {needed:,}", param_hint="--pool"
        )
    return {
        "pool_tokens": pool_tokens,
        "context": length,
        "batches": sizes,
        "steps": steps,
        "temperature": temperature,
        "host_bytes": _bytes(host),
    }


def _bytes(text: str) -> int:
    try:
        return parse_size(text)
    except ValueError as bad:
        raise typer.BadParameter(str(bad), param_hint="--host-cache") from None


def _tokens(text: str, option: str) -> int:
    try:
        return parse_tokens(text)
    except InvalidArgument as bad:
        raise typer.BadParameter(str(bad), param_hint=option) from None


def _print(console: Any, result: dict[str, Any]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    machine = result["machine"]
    console.print(
        f"\n{result['model']}, {result['dtype']} on {result['device']}, attention {result['attention_backend']}; "
        f"{machine['cpu']}, {machine['threads']} threads, torch {machine['torch']}",
        highlight=False,
    )
    config = result["config"]
    decode = Table("decode, ms a step", *result["decode_ms"]["separate"], box=SIMPLE_HEAD, pad_edge=False)
    for kind, name in (("separate", "contexts of their own"), ("shared", "a shared prefix")):
        decode.add_row(name, *(f"{ms:.1f}" for ms in result["decode_ms"][kind].values()))
    for column in decode.columns[1:]:
        column.justify = "right"
    console.print(f"by batch size, contexts of {config['context']:,} tokens", style="dim")
    console.print(decode)
    prefill = result["prefill_tokens_per_s"]
    console.print(
        f"prefill, {config['chunk']} tokens: {prefill['cold']:.0f} tokens/s, "
        f"behind {config['context']:,} cached ones {prefill['behind_context']:.0f} tokens/s\n",
        highlight=False,
    )
    if "host_ms_per_step" in result:
        host = Table("beside the forward pass", "ms a step", box=SIMPLE_HEAD, pad_edge=False)
        host.columns[1].justify = "right"
        for part, ms in result["host_parts_ms"].items():
            host.add_row(part, f"{ms:.3f}")
        host.add_section()
        host.add_row("together", f"{result['host_ms_per_step']:.3f}")
        console.print(
            f"batch {result['host_batch']}, pool of {config['pool_tokens']:,} tokens, {result['host_steps']} steps; "
            f"median {result['host_ms_p50']:.3f}, 95th percentile {result['host_ms_p95']:.3f}",
            style="dim",
            highlight=False,
        )
        console.print(host)
