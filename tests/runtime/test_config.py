"""Settings by flag, environment and file: who wins, and what a bad one gets."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from runtime.config import ServeConfig, build_config
from runtime.settings import BadConfig
from runtime.sizes import parse_size
from tests.runtime.serve_command import run


def test_a_flag_wins_over_the_environment_and_that_over_the_file(served: list[ServeConfig], tmp_path: Path) -> None:
    file = tmp_path / "serve.yaml"
    file.write_text("port: 1\nmax-queue: 11\nblock_size: 4\nkv-memory: 3MiB\n")
    env = {"RADIX_RUNTIME_PORT": "2", "RADIX_RUNTIME_MAX_QUEUE": "22"}
    result = run("--config", str(file), "--port", "3", env=env)
    assert result.exit_code == 0, result.output
    (config,) = served
    assert (config.port, config.max_queue, config.block_size, config.kv_memory) == (3, 22, 4, 3 * 2**20)
    assert config.max_running == ServeConfig().max_running


def test_the_file_may_be_named_by_the_environment(served: list[ServeConfig], tmp_path: Path) -> None:
    file = tmp_path / "serve.yaml"
    file.write_text(
        "model: here\nredis: off\nmetrics_port: off\nkv-events: off\nkv-events-replay: off\nlog_json: true\n"
    )
    result = run(env={"RADIX_RUNTIME_CONFIG": str(file)})
    assert result.exit_code == 0, result.output
    assert (served[0].kv_events, served[0].kv_events_replay) == ("off", "off")
    assert (served[0].model, served[0].redis, served[0].metrics_port, served[0].log_json) == ("here", "off", None, True)


@pytest.mark.parametrize(
    ("args", "env", "words"),
    [
        (["--port", "70000"], {}, ["--port", "70000", "at most 65535"]),
        (["--port", "many"], {}, ["--port", "'many'", "whole number"]),
        (["--drain-seconds", "soon"], {}, ["--drain-seconds", "'soon'", "must be a number"]),
        ([], {"RADIX_RUNTIME_BLOCK_SIZE": "0"}, ["--block-size", "at least 1", "RADIX_RUNTIME_BLOCK_SIZE"]),
        (["--kv-memory", "lots"], {}, ["--kv-memory", "lots", "512MiB"]),
        (["--kv-memory", "2GiB", "--num-blocks", "9"], {}, ["kv_memory", "num_blocks", "one of them"]),
        (["--dtype", "int3"], {}, ["--dtype", "int3", "bfloat16"]),
        (["--device", "gpu"], {}, ["--device", "gpu", "cuda"]),
        (["--redis", "localhost"], {}, ["--redis", "localhost", "redis://"]),
        (["--metrics-port", "none"], {}, ["--metrics-port", "none", "whole number"]),
        (["--runtime-id", "a b"], {}, ["--runtime-id", "a b", "letters"]),
        (["--drain-seconds", "nan"], {}, ["--drain-seconds", "nan"]),
        (["--session-idle-seconds", "0"], {}, ["--session-idle-seconds", "above 0"]),
        (["--kv-events", "nats"], {}, ["--kv-events", "nats", "zmq"]),
        (["--kv-events-endpoint", "5557"], {}, ["--kv-events-endpoint", "'5557'", "tcp://"]),
        (["--kv-events-endpoint", "off"], {}, ["--kv-events-endpoint", "'off'", "tcp://"]),
        (["--kv-events-replay", "no"], {}, ["--kv-events-replay", "'no'", "tcp://", "off"]),
        (["--kv-events-format", "json"], {}, ["--kv-events-format", "json", "array"]),
        (["--log-level", "loud"], {}, ["--log-level", "loud", "debug"]),
        (["--model", ""], {}, ["--model", "empty"]),
        (["--prot", "1"], {}, ["--prot", "--port"]),
    ],
)
def test_a_bad_value_names_the_flag_the_value_and_the_limit(
    served: list[ServeConfig], args: list[str], env: dict[str, str], words: list[str]
) -> None:
    result = run(*args, env=env)
    assert result.exit_code == 2
    assert not served
    for word in words:
        assert word in result.output


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("prot: 1\n", ["unknown setting 'prot'", "port"]),
        ("port: [1, 2]\n", ["port", "single value"]),
        ("port: 99999\n", ["--port", "at most 65535", "serve.yaml"]),
        ("- port\n", ["one setting a line"]),
        ("port: {", ["not YAML"]),
    ],
)
def test_a_bad_file_is_refused_by_name(served: list[ServeConfig], tmp_path: Path, text: str, words: list[str]) -> None:
    file = tmp_path / "serve.yaml"
    file.write_text(text)
    result = run("--config", str(file))
    assert result.exit_code == 2
    assert not served
    for word in words:
        assert word in result.output


def test_a_missing_file_is_named(served: list[ServeConfig], tmp_path: Path) -> None:
    result = run("--config", str(tmp_path / "absent.yaml"))
    assert result.exit_code == 2
    assert "absent.yaml: No such file" in result.output


@pytest.mark.parametrize(
    ("text", "size"), [("512MiB", 2**29), ("2GiB", 2**31), ("1.5 GB", 1_500_000_000), ("4096", 4096), ("1k", 1000)]
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "2 XB", "-1", "1e9", "2GiBs"])
def test_sizes_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match="512MiB"):
        parse_size(text)


def test_every_setting_is_a_flag_and_has_help() -> None:
    result = run("--help")
    for name in ServeConfig.model_fields:
        assert f"--{name.replace('_', '-')} " in result.output


def test_an_unknown_setting_is_refused_by_name() -> None:
    with pytest.raises(BadConfig) as caught:
        build_config({"ports": 1})
    assert caught.value.field == "ports"


def test_the_table_of_settings_names_each_with_its_default() -> None:
    page = (Path(__file__).parents[2] / "docs" / "serving.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `--([a-z-]+)` \| `?([^`|]*?)`? \|", page, re.MULTILINE))
    assert rows.keys() == {name.replace("_", "-") for name in ServeConfig.model_fields}
    for name, setting in ServeConfig.model_fields.items():
        if setting.default is not None and not isinstance(setting.default, bool):
            shown = f"{setting.default:g}" if isinstance(setting.default, float) else str(setting.default)
            assert rows[name.replace("_", "-")] == shown


def test_tiers_are_named_by_folder_and_size() -> None:
    tiers = build_config({"host_cache": "1MiB", "disk_cache": "/a:b:2GiB", "persist": "/p"}).tiers
    assert (tiers.host_bytes, tiers.disk, tiers.disk_bytes, tiers.persist) == (2**20, Path("/a:b"), 2**31, Path("/p"))
    assert not build_config({}).tiers
    for bad in ("2GiB", "/a:", ":2GiB", "/a"):
        with pytest.raises(BadConfig):
            build_config({"disk_cache": bad})
