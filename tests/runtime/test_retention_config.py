"""Settings of what is kept: flags, environment, file."""

from __future__ import annotations

from pathlib import Path

import pytest

from radix.eviction import POLICIES
from runtime.config import ServeConfig
from runtime.sizes import parse_quota
from tests.runtime.serve_command import run


def test_they_come_by_flag(served: list[ServeConfig]) -> None:
    flags = ["--eviction", "slru", "--quota", "a=0.5", "--quota", "b=c=0.25", "--no-explain-across-namespaces"]
    result = run(*flags, "--tool-holds", "off", "--tool-hold-percentile", "75", "--leasable-share", "0.1")
    assert result.exit_code == 0, result.output
    (config,) = served
    assert (config.eviction, config.quota, config.explain_across_namespaces) == ("slru", ("a=0.5", "b=c=0.25"), False)
    assert (config.tool_holds, config.tool_hold_percentile, config.leasable_share) == ("off", 75.0, 0.1)


def test_they_come_by_environment(served: list[ServeConfig]) -> None:
    env = {"QUOTA": "a=0.5 b=0.25", "EVICTION": "lfu", "EXPLAIN_ACROSS_NAMESPACES": "false", "TOOL_HOLDS": "off"}
    result = run(env={f"RADIX_RUNTIME_{name}": value for name, value in env.items()})
    assert result.exit_code == 0, result.output
    (config,) = served
    assert (config.quota, config.eviction) == (("a=0.5", "b=0.25"), "lfu")
    assert (config.explain_across_namespaces, config.tool_holds) == (False, "off")


@pytest.mark.parametrize(("word", "meant"), [("off", "off"), ("on", "on")])
def test_they_come_by_file(served: list[ServeConfig], tmp_path: Path, word: str, meant: str) -> None:
    file = tmp_path / "serve.yaml"
    file.write_text(
        f"tool-holds: {word}\nquota: [a=0.5, b=0.25]\nexplain-across-namespaces: false\neviction: priority\n"
    )
    result = run("--config", str(file))
    assert result.exit_code == 0, result.output
    (config,) = served
    assert (config.tool_holds, config.quota) == (meant, ("a=0.5", "b=0.25"))
    assert (config.explain_across_namespaces, config.eviction) == (False, "priority")
    file.write_text("quota: a=0.5\n")
    assert run("--config", str(file)).exit_code == 0
    assert served[1].quota == ("a=0.5",)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--eviction", "random"], ["--eviction", "'random'", *POLICIES]),
        (["--leasable-share", "1.5"], ["--leasable-share", "at most 1"]),
        (["--leasable-share", "nan"], ["--leasable-share", "nan"]),
        (["--quota", "a"], ["--quota", "'a'", "SALT=SHARE"]),
        (["--quota", "a=0"], ["--quota", "'a=0'", "above 0"]),
        (["--quota", "a=nan"], ["--quota", "'a=nan'"]),
        (["--quota", "a=0.5", "--quota", "b=2"], ["--quota", "'b=2'", "at most 1"]),
        (["--tool-holds", "maybe"], ["--tool-holds", "maybe"]),
        (["--tool-hold-percentile", "0"], ["--tool-hold-percentile", "above 0"]),
    ],
)
def test_a_bad_one_is_refused_by_name(served: list[ServeConfig], args: list[str], words: list[str]) -> None:
    result = run(*args)
    assert result.exit_code == 2
    for word in words:
        assert word in result.output
    assert not served


def test_a_quota_without_a_salt_is_for_those_without_one() -> None:
    assert parse_quota("=0.5") == (None, 0.5)
    assert parse_quota("a=b=0.5") == ("a=b", 0.5)
