"""The base distribution in an empty environment, and the client at the lowest and newest versions that it allows."""

from __future__ import annotations

import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from .toy_runtime import ToyRuntime

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
HEAVY = {"torch", "transformers", "numpy", "redis", "accelerate", "safetensors"}

# What an agent would do: blocking and asyncio, a stream, a session, token ids.
USE = """
import asyncio, sys
from agent_client import AsyncRadixClient, NotFound, RadixClient, RadixloopError
with RadixClient(sys.argv[1]) as client:
    assert client.generate("hello", max_tokens=3).text == "fgh"
    assert client.generate([1, 2, 3], max_tokens=1).usage.prompt_tokens == 3
    assert [type(event).__name__ for event in client.stream("x", max_tokens=1)] == ["Started", "Delta", "Finished"]
    with client.session() as session:
        session.chat([{"role": "user", "content": "hi"}], max_tokens=1)
    assert client.stats().total_blocks == 100
    try:
        client.health()
    except RadixloopError as error:
        assert error.code == "UNIMPLEMENTED", error
async def main():
    async with AsyncRadixClient(sys.argv[1]) as client:
        done = await asyncio.gather(*(client.generate("hello", max_tokens=3) for _ in range(5)))
        assert {generation.text for generation in done} == {"fgh"}
        assert [node.id async for node in client.nodes()] == [1, 2]
asyncio.run(main())
heavy = {"torch", "transformers", "numpy", "typer", "rich"} & set(sys.modules)
assert not heavy, heavy
import grpc, google.protobuf
print(grpc.__version__, google.protobuf.__version__)
"""


def checked(*command: object, cwd: Path) -> str:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, cwd=cwd, timeout=600, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy: a build in place would pick up leftovers of earlier ones."""
    folder = tmp_path_factory.mktemp("wheel")
    copy = folder / "source"
    files = checked("git", "ls-files", "-co", "--exclude-standard", cwd=ROOT).splitlines()
    for name in files:
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, copy / name)
    checked(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", folder, copy, cwd=folder)
    return next(folder.glob("radixloop-*.whl"))


def environment(folder: Path) -> Path:
    """An empty virtual environment; returns its folder of commands."""
    venv.create(folder / "venv", with_pip=True)
    return folder / "venv" / "bin"


def test_the_base_distribution_is_light_and_its_command_answers(wheel: Path, tmp_path: Path, toy: ToyRuntime) -> None:
    commands = environment(tmp_path)
    checked(commands / "pip", "install", "-q", wheel, cwd=tmp_path)
    installed = {line.split("==")[0].lower() for line in checked(commands / "pip", "freeze", cwd=tmp_path).splitlines()}
    assert {"grpcio", "protobuf", "typer"} <= installed
    assert not HEAVY & installed
    assert "replay" in checked(commands / "agent-client", "--help", cwd=tmp_path)
    assert '"total_blocks": 100' in checked(
        commands / "agent-client", "stats", "--json", "-t", toy.target, cwd=tmp_path
    )
    shown = checked(commands / "agent-client", "replay", "--compare", "-t", toy.target, cwd=tmp_path)
    assert "repository.jsonl on toy" in shown
    assert "infinite cache" in shown


@pytest.mark.parametrize(
    ("libraries", "grpc_version", "protobuf_version"),
    [
        (["grpcio==1.62.0", "protobuf==5.26.0"], "1.62.0", "5.26.0"),
        (["grpcio", "protobuf<7"], "1.", "6."),
        (["grpcio", "protobuf<8"], "1.", "7."),
    ],
    ids=["lowest", "protobuf 6", "newest"],
)
def test_the_library_needs_grpc_and_protobuf_alone(
    wheel: Path, tmp_path: Path, toy: ToyRuntime, libraries: list[str], grpc_version: str, protobuf_version: str
) -> None:
    commands = environment(tmp_path)
    checked(commands / "pip", "install", "-q", *libraries, cwd=tmp_path)
    checked(commands / "pip", "install", "-q", "--no-deps", wheel, cwd=tmp_path)
    used = checked(commands / "python", "-W", "error::UserWarning", "-c", USE, toy.target, cwd=tmp_path).split()
    assert used[0].startswith(grpc_version)
    assert used[1].startswith(protobuf_version)
