"""Whose files lie in a folder, and how lately what they hold was used."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from runtime.errors import InvalidRequest
from runtime.models.loaded_model import LoadedModel
from runtime.tiers import slot_file
from runtime.tiers.settings import TierSettings
from runtime.tiers.slot_file import Owner, SlotFile
from tests.runtime.engine_harness import Harness
from tests.runtime.tiers.harness import MIB, SIZE, prompts, settle, tiered


def other(loaded: LoadedModel, what: str) -> LoadedModel:
    """The model with another fingerprint, as other weights or another template give it."""
    return replace(loaded, info=replace(loaded.info, fingerprint=what * 64, name=what))


def fill(loaded: LoadedModel, settings: TierSettings, **config: int) -> None:
    with tiered(loaded, settings, **config) as harness:
        harness.run(prompts(1)[0], max_tokens=2)
        settle(harness)


@pytest.fixture
def folder(tmp_path: Path, tiny: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with our file, and those of two models, of another precision, block size and version."""
    settings = TierSettings(disk=tmp_path, disk_bytes=MIB)
    fill(tiny, settings)
    fill(other(tiny, "e"), settings)
    fill(other(tiny, "a"), settings)
    fill(tiny, replace(settings, kv_dtype="bf16"))
    fill(tiny, settings, block_size=2 * SIZE)
    with monkeypatch.context() as patch:
        patch.setattr(slot_file, "VERSION", 99)
        fill(tiny, settings)
    assert len(list(tmp_path.iterdir())) == 6
    return tmp_path


@pytest.mark.parametrize("foreign", ["keep", "remove"])
def test_files_of_others_are_named_and_kept_or_removed(
    foreign: str, folder: Path, tiny: LoadedModel, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / "notes.txt").write_text("not ours")
    before = {path: path.read_bytes() for path in folder.iterdir()}
    with tiered(tiny, TierSettings(disk=folder, disk_bytes=MIB, foreign=foreign)) as harness:
        assert harness.run(prompts(1)[0], max_tokens=2).started.usage.disk_tokens > 0
        ours = harness.engine.tiers._storage.files[0].path
    theirs = {path for path in before if path not in (ours, folder / "notes.txt")}
    assert all(str(path) in caplog.text for path in theirs)
    left = set(folder.iterdir())
    assert {ours, folder / "notes.txt"} <= left
    if foreign == "remove":
        assert left == {ours, folder / "notes.txt"}
    else:
        assert all(path.read_bytes() == before[path] for path in theirs)


def test_a_file_that_another_runtime_has_open_is_not_removed(
    tmp_path: Path, tiny: LoadedModel, caplog: pytest.LogCaptureFixture
) -> None:
    theirs = SlotFile(tmp_path, Owner("e" * 64, "theirs", "fp32", SIZE, 1000), 10)
    fill(tiny, TierSettings(disk=tmp_path, disk_bytes=MIB, foreign="remove"))
    assert theirs.path.exists()
    assert "in use by another runtime" in caplog.text
    theirs.close()
    fill(tiny, TierSettings(disk=tmp_path, disk_bytes=MIB, foreign="remove"))
    assert not theirs.path.exists()


@pytest.mark.parametrize("kind", ["disk", "persist"])
def test_a_second_runtime_over_a_folder_is_refused_and_the_first_goes_on(
    kind: str, tmp_path: Path, tiny: LoadedModel
) -> None:
    settings = TierSettings(**{kind: tmp_path}, disk_bytes=MIB)
    work = prompts(1)[0]
    with tiered(tiny, settings) as harness:
        harness.run(work, max_tokens=2)
        with pytest.raises(InvalidRequest, match="in use by another runtime"):
            Harness(tiny, tiers=settings, block_size=SIZE, num_blocks=40)
        harness.run(work, max_tokens=2)
    with tiered(tiny, settings) as harness:
        assert harness.run(work, max_tokens=2).started.usage.disk_tokens >= len(work) - SIZE


def test_one_folder_for_both_kinds_and_a_file_in_place_of_a_folder_are_refused(
    tmp_path: Path, tiny: LoadedModel
) -> None:
    (tmp_path / "file").write_text("not a folder")
    for settings in (
        TierSettings(disk=tmp_path, disk_bytes=MIB, persist=tmp_path),
        TierSettings(disk=tmp_path / "file", disk_bytes=MIB),
        TierSettings(persist=tmp_path / "file" / "below"),
    ):
        with pytest.raises(InvalidRequest):
            Harness(tiny, tiers=settings, block_size=SIZE, num_blocks=40)


def test_a_folder_that_is_removed_under_a_runtime_costs_the_next_start_what_it_held(
    tmp_path: Path, tiny: LoadedModel
) -> None:
    settings = TierSettings(disk=tmp_path / "d", disk_bytes=MIB, persist=tmp_path / "p")
    work = prompts(3)
    with tiered(tiny, settings) as harness:
        want = [harness.run(tokens, max_tokens=6).tokens for tokens in work]
        shutil.rmtree(tmp_path / "d")
        shutil.rmtree(tmp_path / "p")
        assert [harness.run(tokens, max_tokens=6).tokens for tokens in work] == want
    with tiered(tiny, settings) as harness:
        reply = harness.run(work[0], max_tokens=6)
        assert (reply.tokens, reply.started.usage.cached_tokens) == (want[0], 0)


def stamps(harness: Harness) -> dict[int, int]:
    """When blocks were used last, by their first token, as the file of what was saved says."""
    old = harness.engine.tiers._storage.files[0]
    file = SlotFile(old.path.parent, old._owner, old.slots)
    found = {int.from_bytes(r.tokens[:4], "little"): r.stamp for r in file.scan()}
    file.close()
    return found


def test_what_was_saved_before_and_used_again_is_saved_as_lately_used(tmp_path: Path, tiny: LoadedModel) -> None:
    first, second = ([10 * n + i % 9 for i in range(16)] for n in (1, 5))
    settings = TierSettings(persist=tmp_path)
    with tiered(tiny, settings, num_blocks=40) as harness:
        harness.run(first, max_tokens=1)
        harness.run(second, max_tokens=1)
    saved = stamps(harness)
    assert saved[first[0]] < saved[second[0]]
    with tiered(tiny, settings, num_blocks=40) as harness:
        assert harness.run(first, max_tokens=1).started.usage.disk_tokens == len(first) - 1
    again = stamps(harness)
    assert again[first[0]] > again[second[0]] == saved[second[0]]
