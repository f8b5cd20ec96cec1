"""What the pages tell people to type exists: commands, their flags, make's targets, and the README's defaults."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.main import get_command

import agent_client.cli
import radix.cli
import runtime.cli
from runtime.config import ServeConfig

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "deploy/README.md")),
    *sorted(ROOT.glob("docs/*.md")),
]
COMMANDS = {
    "radix": get_command(radix.cli.app),
    "radix-runtime": get_command(runtime.cli.app),
    "agent-client": get_command(agent_client.cli.app),
}
# In a sentence as `radix plan`, or as a line of its own to type.
_TYPED = re.compile(rf"(?:`|^(?: {{4}})?(?:\$ )?)({'|'.join(COMMANDS)}) ([a-z][a-z-]*)([^`\n#|]*)", re.MULTILINE)


def typed(page: Path) -> Iterator[tuple[str, str, str]]:
    """Program, subcommand and what follows, for everything on the page that calls one of our programs."""
    text = re.sub(r"\\\n\s*", " ", page.read_text(encoding="utf-8"))
    for match in _TYPED.finditer(text):
        yield match.group(1), match.group(2), match.group(3)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_commands_and_flags_on_the_pages_exist(page: Path) -> None:
    for program, name, rest in typed(page):
        subcommands = COMMANDS[program].commands  # type: ignore[attr-defined]
        assert name in subcommands, f"{program} {name}"
        known = {
            flag for parameter in subcommands[name].params for flag in (*parameter.opts, *parameter.secondary_opts)
        }
        for flag in re.findall(r"(?<!\S)--?[a-z][a-z-]*", rest):
            assert flag in known, f"{program} {name} {flag}"


def test_the_pages_call_every_program() -> None:
    assert {program for page in PAGES for program, _, _ in typed(page)} == set(COMMANDS)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_make_has_the_targets_that_the_pages_name(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    for target in re.findall(r"(?:`|^ {4})make ([a-z-]+)", page.read_text(encoding="utf-8"), re.MULTILINE):
        assert target in targets, f"make {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        assert (page.parent / link).exists(), link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_files_that_the_pages_name_exist(page: Path) -> None:
    rooms = "radix|runtime|agent_client|proto|deploy|tests|docs"
    for path in re.findall(rf"(?<![\w/.-])((?:{rooms})/[\w/.*-]*\w)", page.read_text(encoding="utf-8")):
        assert list(ROOT.glob(path)), path


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_modules_that_the_pages_start_exist(page: Path) -> None:
    for module in re.findall(
        r"python -m ((?:radix|runtime|agent_client|tests)[\w.]*\w)", page.read_text(encoding="utf-8")
    ):
        path = ROOT.joinpath(*module.split("."))
        assert path.with_suffix(".py").is_file() or (path / "__main__.py").is_file(), module


def test_the_readme_names_settings_with_their_defaults() -> None:
    rows = re.findall(r"^\| (`--[^|]*) \| ([^|]*) \|", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert len(rows) > 5
    for flags, cell in rows:
        names = [name.replace("-", "_") for name in re.findall(r"`--([a-z-]+)`", flags)]
        shown = re.findall(r"`([^`]*)`", cell)
        defaults = [ServeConfig.model_fields[name].default for name in names if name != "config"]
        assert shown == list(dict.fromkeys(str(default) for default in defaults if default is not None)), flags
