"""Decode over fixed tensors with padding against the ordinary step, with the recording replaced by a plain call.

No CUDA graph is recorded here: what is shown is that a padded step over buffers that are filled anew gives every row
the logits and the KV that it has alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from runtime.attention.paged_layout import paged_layout
from runtime.errors import InvalidRequest
from runtime.execution import cuda_graphs
from runtime.execution.batch import BatchItem
from runtime.execution.cuda_graphs import DecodeGraphs, batches, lengths, record_graphs
from runtime.execution.model_runner import ModelRunner
from runtime.execution.static_step import StaticStep
from runtime.models.loaded_model import LoadedModel
from tests.runtime.attention_libraries import PagedReference
from tests.runtime.small_llama import VOCAB, small_llama

BLOCK, BLOCKS = 4, 40
CPU = torch.device("cpu")


class PlainRecorder:
    """In place of a CUDA graph: runs the step again, and keeps its output in one tensor as a graph does."""

    def __init__(self) -> None:
        self.recorded = 0

    def record(self, step: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
        self.recorded += 1
        output = step().clone()

        def replay() -> torch.Tensor:
            return output.copy_(step())

        return replay


@pytest.fixture(scope="module")
def llama() -> LoadedModel:
    return small_llama()


def make_runner(llama: LoadedModel) -> ModelRunner:
    runner = ModelRunner(llama, BLOCKS + 1, BLOCK, fill=float("nan"))
    runner.backend = PagedReference()
    return runner


def make_graphs(runner: ModelRunner, max_batch: int = 8, max_tokens: int = 64) -> DecodeGraphs:
    return DecodeGraphs(
        runner._compute,
        PlainRecorder(),
        device=CPU,
        block_size=BLOCK,
        num_blocks=BLOCKS,
        max_batch=max_batch,
        max_tokens=max_tokens,
    )


def test_padded_steps_equal_the_ordinary_ones(llama: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_graphs, "FIRST_TOKENS", 16)
    runner, plain = make_runner(llama), make_runner(llama)
    graphs = make_graphs(runner)
    random = np.random.default_rng(5)
    tables = random.permutation(BLOCKS).astype(np.int32).reshape(5, 8)
    prompts = [random.integers(0, VOCAB, length).astype(np.int32) for length in (1, 15, 4, 20, 7)]
    for one in (runner, plain):
        for prompt, table in zip(prompts, tables, strict=True):
            one.forward([BatchItem(prompt, 0, table, 0)])
    starts = [len(prompt) for prompt in prompts]
    shapes = set()
    # Batches and lengths grow and shrink, so that rows of padding hold what was decoded a step before.
    for members in ([0], [0, 1, 2, 3, 4], [3, 1, 2], [4], [1, 0], [2, 3, 4, 0, 1], [0, 1, 2, 3, 4]):
        items = [
            BatchItem(random.integers(0, VOCAB, 1).astype(np.int32), starts[index], tables[index]) for index in members
        ]
        step = graphs.prepare(items)
        assert step is not None
        shapes.add((step.batch, step.width))
        wanted = plain.forward(items)
        torch.testing.assert_close(graphs.replay(step), wanted, rtol=1e-5, atol=1e-5)
        for index in members:
            starts[index] += 1
    assert shapes == {(1, 4), (8, 16), (4, 16), (2, 16)}
    for layer, kv in runner.pool.layers.items():
        torch.testing.assert_close(
            kv.keys[:BLOCKS], plain.pool.layers[layer].keys[:BLOCKS], rtol=1e-5, atol=1e-5, equal_nan=True
        )


def test_padding_touches_no_block_of_a_sequence(llama: LoadedModel) -> None:
    runner = make_runner(llama)
    graphs = make_graphs(runner)
    step = graphs.prepare([BatchItem(np.array([7], np.int32), 0, np.array([5], np.int32))] * 3)
    assert step is not None
    assert step.batch == 4
    graphs.replay(step)
    kv = runner.pool.layers[0].keys
    written = ~torch.isnan(kv).any(dim=(1, 2, 3)) | ~torch.isnan(kv).all(dim=(1, 2, 3))
    assert torch.nonzero(written).flatten().tolist() == [5, BLOCKS]


def test_what_no_graph_is_made_for(llama: LoadedModel) -> None:
    graphs = make_graphs(make_runner(llama), max_batch=2, max_tokens=16)
    table = np.arange(8, dtype=np.int32)
    token = np.array([1], np.int32)
    assert graphs.prepare([BatchItem(token, 15, table)] * 2) is not None
    assert graphs.prepare([BatchItem(token, 15, table)] * 3) is None
    assert graphs.prepare([BatchItem(token, 16, table)]) is None
    assert graphs.prepare([BatchItem(np.array([1, 2], np.int32), 0, table)]) is None
    assert graphs.prepare([BatchItem(token, 3, table, 0)]) is None


def test_bad_tables_are_refused_as_ever(llama: LoadedModel) -> None:
    graphs = make_graphs(make_runner(llama))
    token = np.array([1], np.int32)
    with pytest.raises(InvalidRequest, match=r"items\[0\].table"):
        graphs.prepare([BatchItem(token, 0, np.array([BLOCKS], np.int32))])
    with pytest.raises(InvalidRequest, match="5 tokens need 2 blocks"):
        graphs.prepare([BatchItem(token, 4, np.array([1], np.int32))])


def test_the_runner_goes_through_its_graphs(llama: LoadedModel) -> None:
    runner, plain = make_runner(llama), make_runner(llama)
    runner._graphs = make_graphs(runner)
    prompt, table = np.arange(6, dtype=np.int32), np.array([3, 1], np.int32)
    for items in ([BatchItem(prompt, 0, table)], [BatchItem(np.array([9], np.int32), 6, table)]):
        plan = runner.prepare(items)
        assert isinstance(plan, StaticStep) == (len(items[0].tokens) == 1)
        got = runner.run(plan, plan.logit_rows)
        torch.testing.assert_close(got, plain.forward(items), rtol=1e-5, atol=1e-5)
        assert got.shape == (1, VOCAB)
    with pytest.raises(InvalidRequest, match="at least one item"):
        runner.prepare([])


def test_one_graph_for_each_batch_and_length() -> None:
    assert batches(1) == [1]
    assert batches(8) == [1, 2, 4, 8]
    assert batches(24) == [1, 2, 4, 8, 16, 24]
    assert lengths(1000) == [1000]
    assert lengths(32768) == [2048, 8192, 32768]
    assert lengths(40000) == [2048, 8192, 32768, 40000]


def test_the_step_is_one_buffer() -> None:
    step = StaticStep(4, 3, BLOCK, BLOCKS, CPU)
    tensors = (step.input_ids, step.position_ids, step.write_slots, paged_layout(step).table, paged_layout(step).cu_kv)
    assert len({tensor.untyped_storage().data_ptr() for tensor in tensors}) == 1
    before = [tensor.data_ptr() for tensor in tensors]
    step.fill([BatchItem(np.array([9], np.int32), 5, np.array([7, 8], np.int32))] * 2, BLOCKS)
    assert [tensor.data_ptr() for tensor in tensors] == before
    assert step.input_ids.tolist() == [[9, 9, 0, 0]]
    assert step.position_ids.tolist() == [[5, 5, 0, 0]]
    assert step.write_slots.tolist() == [33, 33, BLOCKS * BLOCK, BLOCKS * BLOCK]
    assert paged_layout(step).kv_lens.tolist() == [6, 6, 0, 0]
    assert paged_layout(step).cu_kv.tolist() == [0, 6, 12, 12, 12]
    assert paged_layout(step).table.tolist() == [[7, 8, 7], [7, 8, 7], [BLOCKS] * 3, [BLOCKS] * 3]


@pytest.mark.parametrize(("fixed_shapes", "why"), [(False, "shapes of its own"), (True, "recording failed: no driver")])
def test_without_graphs_the_log_says_why(
    fixed_shapes: bool, why: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_driver(_: torch.device) -> None:
        raise RuntimeError("no driver")

    monkeypatch.setattr(cuda_graphs, "GraphRecorder", no_driver)
    found = record_graphs(
        lambda *_: torch.empty(0),
        device=torch.device("cuda"),
        fixed_shapes=fixed_shapes,
        block_size=16,
        num_blocks=8,
        max_batch=4,
        max_tokens=64,
    )
    assert found is None
    assert why in caplog.text


class Streams:
    """Stands in for what `torch.cuda` knows of streams and graphs; `broken` graphs cannot be ended."""

    def __init__(self, *, broken: bool) -> None:
        self.current: Any = "first"
        self.calls: list[Any] = []
        self._broken = broken

    def patch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        class Stream:
            def __init__(self, _: torch.device) -> None:
                pass

            def wait_stream(self, other: Any) -> None:
                pass

        fakes = {
            "Stream": Stream,
            "graph_pool_handle": lambda: (0, 1),
            "device": lambda _: nullcontext(),
            "current_stream": lambda device=None: self.current,
            "stream": self.on,
            "CUDAGraph": lambda: SimpleNamespace(replay=lambda: self.calls.append("replay")),
            "graph": self.graph,
        }
        for name, fake in fakes.items():
            monkeypatch.setattr(torch.cuda, name, fake)

    @contextmanager
    def on(self, stream: Any) -> Iterator[None]:
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    @contextmanager
    def graph(self, graph: Any, **settings: Any) -> Iterator[None]:
        # As torch's: what ends the capture may raise, and then the stream before is not restored.
        before, self.current = self.current, settings["stream"]
        self.calls.append(settings["capture_error_mode"])
        yield
        if self._broken:
            raise RuntimeError("operation not permitted when stream is capturing")
        self.current = before


@pytest.mark.parametrize("broken", [False, True])
def test_recording_leaves_the_stream_as_it_was(broken: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    streams = Streams(broken=broken)
    streams.current = SimpleNamespace(wait_stream=lambda _: None)
    began = streams.current
    streams.patch(monkeypatch)
    ran_on: list[Any] = []

    def step() -> torch.Tensor:
        ran_on.append(streams.current)
        return torch.ones(3)

    recorder = cuda_graphs.GraphRecorder(torch.device("cuda"))
    if broken:
        with pytest.raises(RuntimeError, match="capturing"):
            recorder.record(step)
    else:
        replay = recorder.record(step)
        assert replay() is replay()
        assert streams.calls == ["thread_local", "replay", "replay"]
    assert streams.current is began
    # Warmed up and recorded on the recorder's own stream.
    assert ran_on == [recorder._stream] * (cuda_graphs.WARM_UPS + 1)
