"""The runner's contract: order of logits, bad input, failures, and what never decides an answer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from runtime.errors import InvalidRequest
from runtime.execution.batch import BatchItem
from runtime.execution.model_runner import ModelRunner
from runtime.models.loaded_model import LoadedModel
from tests.runtime.plain_forward import ordinary
from tests.runtime.small_llama import PAD, VOCAB, small_llama

BLOCK = 4


@pytest.fixture(scope="module")
def llama() -> LoadedModel:
    return small_llama()


@pytest.fixture
def runner(llama: LoadedModel) -> ModelRunner:
    return ModelRunner(llama, 16, BLOCK, fill=float("nan"))


def item(tokens: list[int], start: int, table: list[int], **fields: Any) -> BatchItem:
    return BatchItem(np.array(tokens, np.int32), start, np.array(table, np.int32), **fields)


def test_logits_come_in_item_order_for_those_that_want_them(llama: LoadedModel, runner: ModelRunner) -> None:
    prompts = [np.arange(start, start + 5, dtype=np.int32) for start in (10, 20, 30)]
    items = [BatchItem(p, 0, np.array([2 * i, 2 * i + 1], np.int32), int(i != 1)) for i, p in enumerate(prompts)]
    logits = runner.forward(items)
    assert logits.dtype == torch.float32
    assert logits.shape == (2, VOCAB)
    torch.testing.assert_close(logits, torch.stack([ordinary(llama, prompts[i])[-1] for i in (0, 2)]))


def test_the_last_rows_of_an_item_come_in_order(llama: LoadedModel, runner: ModelRunner) -> None:
    prompts = [np.arange(start, start + 6, dtype=np.int32) for start in (10, 20, 30)]
    rows = [3, 0, 6]
    items = [BatchItem(p, 0, np.array([2 * i, 2 * i + 1], np.int32), rows[i]) for i, p in enumerate(prompts)]
    wanted = torch.cat([ordinary(llama, p)[len(p) - k :] for p, k in zip(prompts, rows, strict=True)])
    torch.testing.assert_close(runner.forward(items), wanted)


def test_a_step_without_logits_still_writes(llama: LoadedModel, runner: ModelRunner) -> None:
    tokens = np.arange(8, dtype=np.int32)
    assert runner.forward([BatchItem(tokens[:6], 0, np.array([9, 3], np.int32), 0)]).shape == (0, VOCAB)
    got = runner.forward([BatchItem(tokens[6:], 6, np.array([9, 3], np.int32))])
    torch.testing.assert_close(got[0], ordinary(llama, tokens)[-1])


def test_pad_ids_are_ordinary_tokens(llama: LoadedModel, runner: ModelRunner) -> None:
    tokens = np.array([PAD, PAD, 5, PAD, 7, PAD, PAD, 9, PAD], np.int32)
    got = runner.forward([BatchItem(tokens, 0, np.arange(3, dtype=np.int32))])
    torch.testing.assert_close(got[0], ordinary(llama, tokens)[-1])


def test_one_answer_whatever_shares_the_batch(llama: LoadedModel, runner: ModelRunner) -> None:
    mine = item([4, 5, 6, 7, 8], 0, [14, 15])
    alone = runner.forward([mine])[0]
    others = [item([40 + i] * 7, 0, [2 * i, 2 * i + 1]) for i in range(4)]
    for place in range(5):
        batch = [*others[:place], mine, *others[place:]]
        torch.testing.assert_close(runner.forward(batch)[place], alone)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (item([], 0, [0]), r"items\[0\].tokens"),
        (item([VOCAB], 0, [0]), r"items\[0\].tokens is .*from 0 to 59"),
        (item([-1], 0, [0]), r"items\[0\].tokens is .*from 0 to 59"),
        (item([1], -1, [0]), r"items\[0\].start is -1"),
        (item([1, 2], 3, [0]), r"items\[0\].table is 1: 5 tokens need 2 blocks"),
        (item([1], 0, [16]), r"items\[0\].table is .*from 0 to 15"),
        (item([1], 0, [-1]), r"items\[0\].table is .*from 0 to 15"),
        (item([1, 2], 0, [0], logit_rows=3), r"items\[0\].logit_rows is 3: must be from 0 to 2"),
        (item([1, 2], 0, [0], logit_rows=-1), r"items\[0\].logit_rows is -1"),
    ],
)
def test_bad_items_are_named(runner: ModelRunner, bad: BatchItem, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        runner.forward([bad])
    with pytest.raises(InvalidRequest, match="items"):
        runner.forward([])


class Broken:
    """A back end that fails in the second layer."""

    name = "broken"

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, query: torch.Tensor, *_: Any) -> tuple[torch.Tensor, None]:
        self.calls += 1
        if self.calls == 2:
            raise RuntimeError("out of everything")
        return query, None


def test_a_failed_step_leaves_the_runner_usable(llama: LoadedModel, runner: ModelRunner) -> None:
    tokens = np.arange(20, 31, dtype=np.int32)
    table = np.array([5, 1, 8], np.int32)
    runner.forward([BatchItem(tokens[:6], 0, table)])
    good, runner.backend = runner.backend, Broken()
    with pytest.raises(RuntimeError, match="out of everything"):
        runner.forward([BatchItem(tokens[6:], 6, table)])
    runner.backend = good
    got = runner.forward([BatchItem(tokens[6:], 6, table)])
    torch.testing.assert_close(got[0], ordinary(llama, tokens)[-1])


def test_the_hook_serves_runners_only(llama: LoadedModel) -> None:
    with pytest.raises(RuntimeError, match="plain_attention"):
        llama.model(input_ids=torch.tensor([[1, 2]]), use_cache=False)
