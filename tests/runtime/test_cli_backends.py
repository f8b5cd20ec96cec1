"""`radix-runtime backends` on a machine without a GPU."""

from __future__ import annotations

from typer.testing import CliRunner

from runtime.cli import app


def test_the_table_names_what_serves_and_why_others_do_not() -> None:
    result = CliRunner().invoke(app, ["backends", "--device", "cpu", "--block-size", "256", "--softcap"])
    assert result.exit_code == 0
    rows = {cells[0].strip(): [c.strip() for c in cells] for cells in _rows(result.output)}
    assert rows["native"][2] == rows["sdpa"][2] == "serves"
    assert rows["varlen"][2] == "needs a CUDA GPU, not cpu"
    assert rows["deterministic"][2] == "has no softcap"
    assert rows["triton"][1] == "in place"
    # In the order in which they would be taken. varlen comes before Triton where it reads in place.
    order = list(rows)
    assert [name for name in order if name != "varlen"][:5] == ["fa3", "fa2", "triton", "native", "sdpa"]
    assert order.index("varlen") == (2 if rows["varlen"][1] == "in place" else 4)


def test_a_bad_device_is_named() -> None:
    result = CliRunner().invoke(app, ["backends", "--device", "gpu"])
    assert result.exit_code == 2
    assert "gpu" in result.output


def _rows(output: str) -> list[list[str]]:
    return [line.strip("│").split("│") for line in output.splitlines() if line.startswith("│")]
