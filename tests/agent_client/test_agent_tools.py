"""The recorder's tools stay inside their folder, inside their bounds, and inside arithmetic."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agent_client.agent import TOOL_DEFINITIONS, ToolError, Tools, Workspace
from agent_client.agent.calculator import MAX_DIGITS, MAX_LENGTH, CannotCalculate, calculate
from agent_client.agent.tools import MAX_LINE_CHARS, MAX_PATTERN_CHARS, MAX_RESULT_CHARS
from agent_client.agent.workspace import MAX_FILE_BYTES


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    (root / "pkg" / "deep").mkdir(parents=True)
    (root / "pkg" / "a.py").write_text("one\ntwo = 2\nthree\n")
    (root / "pkg" / "deep" / "b.py").write_text("two\n" * 10)
    (root / "pkg" / "notes.md").write_text("two\n")
    (root / ".git").mkdir()
    (root / ".git" / "config.py").write_text("two\n")
    (root / "build").mkdir()
    (root / "build" / "made.py").write_text("two\n")
    (tmp_path / "secret.txt").write_text("two secrets\n")
    return root


@pytest.fixture
def tools(root: Path) -> Tools:
    return Tools(Workspace(root))


def test_listing_is_longest_first_and_leaves_out_what_is_no_source(tools: Tools) -> None:
    assert tools.run("list_files", {"path": "."}) == "3 files, 14 lines\n10 pkg/deep/b.py\n3 pkg/a.py\n1 pkg/notes.md"
    assert tools.run("list_files", {"path": "pkg", "pattern": "*.md"}) == "1 files, 1 lines\n1 pkg/notes.md"


def test_reading_names_the_lines_and_the_length(tools: Tools) -> None:
    assert tools.run("read_file", {"path": "pkg/a.py", "first": 2, "last": 2}) == "pkg/a.py, lines 2-2 of 3\ntwo = 2"
    assert tools.run("read_file", {"path": "pkg/a.py", "first": 3, "last": 99}) == "pkg/a.py, lines 3-3 of 3\nthree"


def test_search_names_file_and_line(tools: Tools) -> None:
    found = tools.run("grep", {"pattern": r"^two\b", "path": ".", "files": "*.py"}).splitlines()
    assert found[0] == "11 matches in 2 of 2 files"
    assert found[1] == "pkg/a.py:2: two = 2"
    assert found[-1] == "pkg/deep/b.py:10: two"
    assert tools.run("grep", {"pattern": "w.", "path": "pkg/a.py", "only_match": True}).endswith("\npkg/a.py:2: wo")


@pytest.mark.parametrize(
    "path", ["..", "../secret.txt", "pkg/../../secret.txt", "/etc/passwd", "~/x", "a\0b", "\ud800", "none"]
)
@pytest.mark.parametrize("tool", ["list_files", "read_file", "grep"])
def test_no_path_leads_out(tools: Tools, tool: str, path: str) -> None:
    arguments = {"path": path, **({"pattern": "two"} if tool == "grep" else {})}
    with pytest.raises(ToolError, match="path is"):
        tools.run(tool, arguments)


def test_no_symlink_leads_out(root: Path, tools: Tools) -> None:
    (root / "pkg" / "link.txt").symlink_to(root.parent / "secret.txt")
    (root / "folder").symlink_to(root.parent)
    for path in ("pkg/link.txt", "folder", "folder/secret.txt"):
        with pytest.raises(ToolError, match="leads out"):
            tools.run("read_file", {"path": path})
        with pytest.raises(ToolError, match="leads out"):
            tools.run("grep", {"path": path, "pattern": "two"})
    assert "secret" not in tools.run("grep", {"path": ".", "pattern": "two"})
    assert "link" not in tools.run("list_files", {"path": "."})


def test_results_are_bounded(root: Path, tools: Tools) -> None:
    (root / "wide.txt").write_text("w" * 100_000 + "\n")
    (root / "long.txt").write_text("a line of some length\n" * 5000)
    for i in range(300):
        (root / "pkg" / f"file{i:03d}.txt").write_text("a line\n")
    results = [
        tools.run("read_file", {"path": "wide.txt"}),
        tools.run("read_file", {"path": "long.txt", "last": 5000}),
        tools.run("list_files", {"path": "."}),
        tools.run("grep", {"path": ".", "pattern": "."}),
    ]
    assert all(len(result) <= MAX_RESULT_CHARS for result in results)
    assert results[0] == "wide.txt, lines 1-1 of 1\n" + "w" * MAX_LINE_CHARS
    assert results[1].splitlines()[-1].startswith("... and ")
    # What is cut off is counted all the same.
    assert results[2].startswith("305 files, ")
    kept, left_out = results[1].splitlines()[:-1], results[1].split()[-3]
    assert len(kept) + int(left_out.replace(",", "")) == 5001


def test_errors_are_bounded_too(tools: Tools) -> None:
    with pytest.raises(ToolError) as error:
        tools.run("read_file", {"path": "x" * 100_000})
    assert len(str(error.value)) <= MAX_RESULT_CHARS


def test_files_that_hold_no_text_are_refused(root: Path, tools: Tools) -> None:
    (root / "data.bin").write_bytes(b"two\0two")
    (root / "large.txt").write_bytes(b"two\n" * (MAX_FILE_BYTES // 4 + 1))
    with pytest.raises(ToolError, match="no text"):
        tools.run("read_file", {"path": "data.bin"})
    with pytest.raises(ToolError, match="at most"):
        tools.run("read_file", {"path": "large.txt"})
    with pytest.raises(ToolError, match="no file"):
        tools.run("read_file", {"path": "pkg"})
    assert "data.bin" not in tools.run("grep", {"path": ".", "pattern": "two"})
    assert "large.txt" not in tools.run("grep", {"path": ".", "pattern": "two"})


def test_a_pattern_that_backtracks_forever_is_stopped(root: Path) -> None:
    # Without a limit this search takes 2 ** 60 steps: the test ends only because the search is ended.
    (root / "bomb.txt").write_text("a" * 60 + "!\n")
    with pytest.raises(ToolError, match=r"longer than 0\.5 s"):
        Tools(Workspace(root), search_timeout_s=0.5).run("grep", {"pattern": "(a+)+$", "path": "bomb.txt"})


@pytest.mark.parametrize(
    "pattern", ["(", "*", "a{99999999999}", "(?P<n>a)(?P<n>b)", "", "a" * (MAX_PATTERN_CHARS + 1), 7]
)
def test_a_bad_pattern_is_named(tools: Tools, pattern: Any) -> None:
    with pytest.raises(ToolError, match="pattern"):
        tools.run("grep", {"pattern": pattern, "path": "."})


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("rm", {"path": "."}),
        ("branch", {"question": "?"}),
        ("read_file", {}),
        ("read_file", {"path": "pkg/a.py", "first": 0}),
        ("read_file", {"path": "pkg/a.py", "first": "1"}),
        ("read_file", {"path": "pkg/a.py", "first": 3, "last": 2}),
        ("read_file", {"path": "pkg/a.py", "first": 4, "last": 9}),
        ("read_file", {"path": 3}),
        ("list_files", {"path": ".", "pattern": 3}),
        ("list_files", {"path": ".", "depth": 3}),
        ("calculate", {"expression": None}),
    ],
)
def test_bad_arguments_are_an_answer(tools: Tools, tool: str, arguments: dict[str, Any]) -> None:
    with pytest.raises(ToolError):
        tools.run(tool, arguments)


def test_every_tool_but_branch_runs_by_its_definition(tools: Tools) -> None:
    samples = {
        "path": "pkg/a.py",
        "pattern": "t*",
        "files": "*",
        "first": 1,
        "last": 2,
        "expression": "1 + 1",
        "only_match": True,
    }
    for definition in TOOL_DEFINITIONS:
        function = definition["function"]
        properties = function["parameters"]["properties"]
        assert set(function["parameters"]["required"]) <= properties.keys()
        if function["name"] != "branch":
            assert tools.run(function["name"], {name: samples[name] for name in properties})


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("1 + 2 * 3", 7),
        ("(1 + 2) * -3", -9),
        ("7 // 2 + 7 % 4", 6),
        ("100 * 3 / 12", 25.0),
        ("2 ** 10", 1024),
        ("2 ** -1", 0.5),
        (" 1.5e3 ", 1500.0),
    ],
)
def test_arithmetic(expression: str, value: float) -> None:
    assert calculate(expression) == value


@pytest.mark.parametrize(
    "expression",
    [
        "",
        "x",
        "__import__('os')",
        "abs(1)",
        "(1).real",
        "[1][0]",
        "'a' * 9",
        "True + 1",
        "1j",
        "1 if 1 else 2",
        "1 < 2",
        "1 << 9",
        "lambda: 1",
        "1; 2",
        "1 +",
        "1 / 0",
        "0 ** -1",
        "(-8) ** 0.5",
        "9 ** 9 ** 9",
        "2.0 ** 99999",
        "1e308 * 10",
        "1e999",
        "9" * MAX_LENGTH + "9",
        "(" * 150 + ")" * 50,
        f"10 ** {MAX_DIGITS + 1}",
    ],
)
def test_what_is_no_arithmetic_is_refused(expression: str) -> None:
    with pytest.raises(CannotCalculate):
        calculate(expression)


def test_the_root_must_be_a_folder(tmp_path: Path) -> None:
    with pytest.raises(NotADirectoryError):
        Workspace(tmp_path / "none")
