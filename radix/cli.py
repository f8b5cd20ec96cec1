"""The commands of `radix`. Each imports what it needs when it runs, so that help is quick and plain installs work."""

from __future__ import annotations

import typer

from radix.bench_cli import bench
from radix.inspect_cli import inspect
from radix.plan_cli import plan
from radix.simulate_cli import simulate

app = typer.Typer(
    name="radix",
    help="Work with the prefix cache without a model: replay traces, measure it, plan its memory, look inside it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(simulate)
app.command()(plan)
app.command()(inspect)
app.command()(bench)
