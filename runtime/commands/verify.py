"""`radix-runtime verify`: whether hits answer as misses do."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

from radix.output import JSON_HELP, check_json_target, write_json


def verify(
    metrics_url: Annotated[
        str, typer.Option(metavar="URL", help="Metrics page of a runtime that serves with --verify-hits.")
    ] = "http://127.0.0.1:9400/metrics",
    model: Annotated[
        str | None,
        typer.Option(metavar="MODEL", show_default=False, help="Check this model here instead of asking a runtime."),
    ] = None,
    dtype: Annotated[str, typer.Option(metavar="DTYPE", help="As for serve, with --model.")] = "auto",
    device: Annotated[str, typer.Option(metavar="DEVICE", help="As for serve, with --model.")] = "auto",
    deterministic: Annotated[
        bool, typer.Option("--deterministic", help="As for serve, with --model: any difference is a mismatch.")
    ] = False,
    prompt_tokens: Annotated[int, typer.Option(min=2, metavar="N", help="Length of the prompts, with --model.")] = 600,
    json: Annotated[str | None, typer.Option(metavar="FILE", show_default=False, help=JSON_HELP)] = None,
) -> None:
    """Report how far answers over cached KV are from the same tokens computed without it.

    A runtime that serves with --verify-hits SHARE recomputes that share of its hits while idle; this shows what it
    found so far. With --model the check is made here, on hits of several lengths. The exit status is 1 when a hit was
    wrong.

    Examples:

        radix-runtime verify

        radix-runtime verify --model smollm2 --deterministic
    """
    from runtime.errors import RuntimeServiceError

    check_json_target(json)
    try:
        result = _ask(metrics_url) if model is None else _check(model, dtype, device, deterministic, prompt_tokens)
    except (RuntimeServiceError, OSError, ValueError) as error:
        typer.echo(f"radix-runtime verify: {error}", err=True)
        raise typer.Exit(2) from None
    if json is not None:
        write_json(json, result)
    if json != "-":
        hits = result["hits"]
        typer.echo(
            f"{hits['equal'] + hits['close'] + hits['mismatch']} hits verified: {hits['equal']} with the same bits, "
            f"{hits['close']} equal to rounding, {hits['mismatch']} wrong ({hits['skipped']} skipped)\n"
            f"largest difference of a logit {result['largest_logit_difference']:.3g}; "
            f"{result['flips']} of {result['tokens']} tokens would be others"
        )
    if result["hits"]["mismatch"]:
        raise typer.Exit(1)


def _check(model: str, dtype: str, device: str, deterministic: bool, prompt_tokens: int) -> dict[str, Any]:
    from runtime.hit_check import check_hits
    from runtime.models.loader import load_model

    loaded = load_model(model, dtype=dtype, device=device, deterministic=deterministic)
    books = asdict(check_hits(loaded, prompt_tokens))
    return {
        "hits": books["outcomes"],
        "tokens": books["tokens"],
        "flips": books["flips"],
        "largest_logit_difference": books["largest_difference"],
    }


def _ask(url: str) -> dict[str, Any]:
    """Read a runtime's metrics. Raises OSError where none answers, ValueError where it does not verify."""
    from urllib.request import urlopen

    from prometheus_client.parser import text_string_to_metric_families

    if not url.startswith(("http://", "https://")):
        raise ValueError(f"--metrics-url {url!r} must begin with http:// or https://")
    with urlopen(url, timeout=10) as page:
        text = page.read().decode()
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    values = {sample.name: sample.value for sample in samples if not sample.labels}
    hits = {s.labels["outcome"]: int(s.value) for s in samples if s.name == "radixloop_verified_hits_total"}
    if not hits:
        raise ValueError(f"the runtime at {url} verifies no hits: start it with --verify-hits SHARE")
    return {
        "hits": hits,
        "tokens": int(values["radixloop_verified_tokens_total"]),
        "flips": int(values["radixloop_verified_flips_total"]),
        "largest_logit_difference": values["radixloop_verify_largest_logit_difference"],
    }
