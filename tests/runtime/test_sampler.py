"""Token choice: distributions against an explicit filter, seeds, penalties, log-probabilities, broken logits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from runtime.errors import EngineFailed
from runtime.execution.logit_rows import BadLogits, LogitRows
from runtime.sampling.block_draw import draw
from runtime.sampling.sampler import SampledToken, TokenSampler, sample_rows
from runtime.sampling.sampling_params import SamplingParams

VOCAB = 40
NO_PROMPT = np.empty(0, np.int32)


def sampler(prompt: np.ndarray = NO_PROMPT, choice: int = 0, vocab: int = VOCAB, **settings_: Any) -> TokenSampler:
    params = SamplingParams(**settings_)
    params.validate(vocab)
    return TokenSampler(params, prompt, choice, vocab)


def random_logits(seed: int, vocab: int = VOCAB, scale: float = 3.0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(0, scale, vocab).astype(np.float32))


def softmax(scores: np.ndarray) -> np.ndarray:
    weights = np.exp(scores - scores.max())
    return weights / weights.sum()


def filtered(
    logits: np.ndarray, temperature: float, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0
) -> np.ndarray:
    """Probabilities after the filters, written out token by token."""
    probs = softmax(logits.astype(np.float64) / temperature)
    order = sorted(range(len(probs)), key=lambda token: -probs[token])
    if top_k:
        for token in order[top_k:]:
            probs[token] = 0.0
        probs /= probs.sum()
    kept, mass = set(), 0.0
    for token in order:
        if mass < top_p:
            kept.add(token)
        mass += probs[token]
    probs = np.array([prob if token in kept else 0.0 for token, prob in enumerate(probs)])
    probs[probs < min_p * probs.max()] = 0.0
    return probs / probs.sum()


def sample(chooser: TokenSampler, logits: torch.Tensor, output: list[int]) -> SampledToken:
    """The token that a choice takes from float [vocab] logits, alone in its step."""
    (token,) = sample_rows(LogitRows.of(logits[None]), [chooser], [output])
    if isinstance(token, Exception):
        raise token
    return token


def distribution(chooser: TokenSampler, logits: torch.Tensor, output: list[int] | None = None) -> np.ndarray:
    token_ids, probs = chooser.distribution(logits, output or [])
    dense = np.zeros(len(logits))
    dense[token_ids.numpy()] = probs.numpy()
    return dense


SETTINGS = [
    {"temperature": 1.0},
    *(
        pytest.param(wanted, marks=pytest.mark.slow)
        for wanted in (
            {"temperature": 0.3},
            {"temperature": 2.5},
            {"temperature": 1.0, "top_k": 5},
            {"temperature": 1.0, "top_p": 0.8},
            {"temperature": 1.0, "top_p": 0.01},
            {"temperature": 1.0, "min_p": 0.2},
        )
    ),
    pytest.param({"temperature": 1.7, "top_k": 12, "top_p": 0.7, "min_p": 0.1}, marks=pytest.mark.slow),
]


@pytest.mark.parametrize("wanted", SETTINGS, ids=str)
def test_frequencies_follow_the_filtered_distribution(wanted: dict[str, Any]) -> None:
    logits = random_logits(3, scale=1.5)
    expected = filtered(logits.numpy(), **wanted)
    chooser = sampler(**wanted, seed=11)
    draws = 20_000
    counts = np.bincount([sample(chooser, logits, []).token_id for _ in range(draws)], minlength=VOCAB)
    assert not counts[expected == 0].any()
    # Tokens that are expected too rarely for the statistic are counted together.
    rare = expected * draws < 10
    observed = np.append(counts[~rare], counts[rare].sum())
    wanted_counts = np.append(expected[~rare], expected[rare].sum()) * draws
    observed, wanted_counts = observed[wanted_counts > 0], wanted_counts[wanted_counts > 0]
    freedom = len(observed) - 1
    statistic = float(((observed - wanted_counts) ** 2 / wanted_counts).sum())
    # Four standard deviations above the mean of chi-square.
    assert statistic <= freedom + 4 * np.sqrt(2 * freedom)


@settings(deadline=None, max_examples=150)
@given(
    seed=st.integers(0, 10_000),
    temperature=st.floats(0.05, 5.0),
    top_k=st.integers(0, 60),
    top_p=st.floats(0.01, 1.0),
    min_p=st.floats(0.0, 1.0),
)
def test_distribution_is_that_of_an_explicit_filter(
    seed: int, temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    logits = random_logits(seed)
    wanted = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
    got = distribution(sampler(**wanted), logits)
    np.testing.assert_allclose(got, filtered(logits.numpy(), **wanted), atol=1e-9)


@pytest.mark.parametrize("scale", [0.01, 1.0, 8.0])
def test_distribution_is_that_of_transformers_over_a_large_vocabulary(scale: float) -> None:
    vocab = 49_152
    logits = random_logits(5, vocab, scale)
    chain = LogitsProcessorList(
        [TemperatureLogitsWarper(0.8), TopKLogitsWarper(9_000), TopPLogitsWarper(0.95), MinPLogitsWarper(0.02)]
    )
    empty: Any = torch.empty((1, 0), dtype=torch.int64)
    expected = torch.softmax(chain(empty, logits[None].double()), dim=-1)[0].numpy()
    got = distribution(sampler(vocab=vocab, temperature=0.8, top_k=9_000, top_p=0.95, min_p=0.02), logits)
    np.testing.assert_allclose(got, expected, atol=1e-12)
    assert (got > 0).sum() == (expected > 0).sum()


@pytest.mark.parametrize("temperature", [1e-3, 1e-30, 5e-324])
def test_a_vanishing_temperature_is_greedy(temperature: float) -> None:
    logits = random_logits(1)
    chooser = sampler(temperature=temperature, seed=0)
    assert {sample(chooser, logits, []).token_id for _ in range(50)} == {int(logits.argmax())}


def run(chooser: TokenSampler, rows: list[torch.Tensor]) -> list[int]:
    output: list[int] = []
    for row in rows:
        output.append(sample(chooser, row, output).token_id)
    return output


def test_the_same_seed_gives_the_same_tokens_whatever_the_batch() -> None:
    rows = [random_logits(seed) for seed in range(30)]
    wanted = {"temperature": 1.0, "top_p": 0.95, "repetition_penalty": 1.3}
    alone = run(sampler(**wanted, seed=5), rows)
    mine = sampler(**wanted, seed=5)
    others = [sampler(temperature=1.0, seed=9), sampler(), sampler(logprobs=True), sampler(temperature=2.0)]
    output: list[int] = []
    rng = np.random.default_rng(0)
    for row in rows:
        company = [other for other in others if rng.random() < 0.6]
        place = int(rng.integers(len(company) + 1))
        samplers = [*company[:place], mine, *company[place:]]
        logits = torch.stack([row if each is mine else random_logits(int(rng.integers(999))) for each in samplers])
        outputs = [output if each is mine else [] for each in samplers]
        output.append(sample_rows(LogitRows.of(logits), samplers, outputs)[place].token_id)
    assert output == alone


def test_seeds_that_differ_in_any_bit_differ() -> None:
    rows = [torch.zeros(VOCAB) for _ in range(24)]
    seeds = [0, 1, 2**31, 2**32, 2**32 + 1, 2**63, 2**64 - 1]
    streams = {tuple(run(sampler(temperature=1.0, seed=seed), rows)) for seed in seeds}
    assert len(streams) == len(seeds)
    assert tuple(run(sampler(temperature=1.0, seed=2**64 - 1), rows)) in streams


def test_choices_of_one_seed_differ_and_no_seed_is_random() -> None:
    rows = [torch.zeros(VOCAB) for _ in range(24)]
    choices = {tuple(run(sampler(temperature=1.0, seed=3, choice=choice), rows)) for choice in range(8)}
    assert len(choices) == 8
    assert run(sampler(temperature=1.0), rows) != run(sampler(temperature=1.0), rows)


@settings(deadline=None, max_examples=60)
@given(
    prompt=st.lists(st.integers(0, VOCAB - 1), max_size=20),
    output=st.lists(st.integers(0, VOCAB - 1), max_size=20),
    repetition=st.floats(0.5, 2.0),
    presence=st.floats(-2.0, 2.0),
    frequency=st.floats(-2.0, 2.0),
    bias=st.dictionaries(st.integers(0, VOCAB - 1), st.floats(-100.0, 100.0), max_size=5),
)
def test_bias_and_penalties_follow_their_formulas(
    prompt: list[int],
    output: list[int],
    repetition: float,
    presence: float,
    frequency: float,
    bias: dict[int, float],
) -> None:
    logits = random_logits(len(prompt))
    expected = logits.double().numpy()
    for token, value in bias.items():
        expected[token] += value
    for token in set(prompt) | set(output):
        expected[token] *= repetition if expected[token] < 0 else 1 / repetition
    for token in set(output):
        expected[token] -= presence + frequency * output.count(token)
    chooser = sampler(
        np.array(prompt, np.int32),
        temperature=1.0,
        repetition_penalty=repetition,
        presence_penalty=presence,
        frequency_penalty=frequency,
        logit_bias=bias,
    )
    # Token by token, then after a step back, as when a preempted request is run again.
    for end in [*range(len(output)), len(output) // 2, len(output)]:
        got = distribution(chooser, logits, output[:end])
    # In logarithms, since a bias can make all other tokens vanishingly rare.
    np.testing.assert_allclose(np.log(got), np.log(softmax(expected)), atol=1e-3)


def test_prompt_ids_beyond_the_output_head_are_passed_over() -> None:
    prompt = np.array([3, VOCAB + 7], np.int32)
    with_stray = distribution(sampler(prompt, temperature=1.0, repetition_penalty=2.0), random_logits(2))
    without = distribution(sampler(prompt[:1], temperature=1.0, repetition_penalty=2.0), random_logits(2))
    np.testing.assert_array_equal(with_stray, without)


def test_bias_decides_greedy_choices_and_leaves_the_logits_alone() -> None:
    logits = random_logits(4)
    before = logits.clone()
    ban = int(logits.argmax())
    assert sample(sampler(logit_bias={7: 100.0}), logits, []).token_id == 7
    assert sample(sampler(logit_bias={ban: -100.0}), logits, []).token_id != ban
    assert torch.equal(logits, before)


def test_greedy_with_repetition_penalty_equals_generate() -> None:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.5,
        eos_token_id=None,
        bos_token_id=None,
        pad_token_id=0,
    )
    model = LlamaForCausalLM(config).eval()
    prompt = torch.tensor([[3, 9, 3, 17, 25]])
    expected = model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=30,
        do_sample=False,
        repetition_penalty=1.4,
    )[0, prompt.shape[1] :].tolist()
    chooser = sampler(prompt[0].numpy().astype(np.int32), repetition_penalty=1.4)
    output: list[int] = []
    with torch.no_grad():
        for _ in range(30):
            tokens = torch.cat([prompt[0], torch.tensor(output, dtype=torch.int64)])[None]
            output.append(sample(chooser, model(tokens).logits[0, -1], output).token_id)
    assert output == expected
    assert len(set(output)) > 5


def test_logprobs_are_those_of_the_raw_logits() -> None:
    logits = random_logits(6)
    raw = np.log(softmax(logits.double().numpy()))
    best = np.argsort(-raw)[:4]
    chooser = sampler(
        np.array([1, 2], np.int32),
        temperature=1.5,
        top_k=3,
        repetition_penalty=1.5,
        logit_bias={11: 50.0},
        logprobs=True,
        top_logprobs=4,
    )
    token = sample(chooser, logits, [1])
    assert token.token_id == 11
    assert token.logprob == pytest.approx(raw[11], abs=1e-5)
    assert [token_id for token_id, _ in token.top] == best.tolist()
    assert [value for _, value in token.top] == pytest.approx(raw[best].tolist(), abs=1e-5)


def test_logprobs_come_as_asked() -> None:
    logits = random_logits(6)
    assert sample(sampler(), logits, []) == SampledToken(int(logits.argmax()), None, ())
    plain = sample(sampler(logprobs=True), logits, [])
    assert plain.logprob is not None
    assert plain.top == ()
    assert len(sample(sampler(top_logprobs=20), logits, []).top) == 20


def test_plain_greedy_is_only_what_argmax_settles() -> None:
    assert sampler().plain_greedy
    # Filters keep the likeliest token, so they change nothing that is greedy.
    assert sampler(top_k=3, top_p=0.5, min_p=0.1, seed=4).plain_greedy
    for more in (
        {"temperature": 0.5},
        {"logprobs": True},
        {"top_logprobs": 1},
        {"repetition_penalty": 1.1},
        {"presence_penalty": 0.1},
        {"frequency_penalty": -0.1},
        {"logit_bias": {1: 1.0}},
    ):
        assert not sampler(**more).plain_greedy


def test_rows_of_every_kind_are_chosen_as_they_are_alone() -> None:
    kinds: list[dict[str, Any]] = [
        {},
        {"temperature": 1.0, "seed": 1},
        {"presence_penalty": 1.0},
        {"logprobs": True, "top_logprobs": 2},
        {},
        {"temperature": 0.7, "top_k": 4, "seed": 2},
    ]
    logits = torch.stack([random_logits(seed) for seed in range(len(kinds))])
    outputs = [[seed, seed, 3] for seed in range(len(kinds))]
    together = sample_rows(LogitRows.of(logits), [sampler(**kind) for kind in kinds], outputs)
    alone = [sample(sampler(**kind), row, out) for kind, row, out in zip(kinds, logits, outputs, strict=True)]
    assert together == alone
    assert sample_rows(LogitRows.of(torch.empty(0, VOCAB)), [], []) == []


@pytest.mark.parametrize("scale", [0.5, 3.0, 12.0])
@pytest.mark.parametrize("top_p", [0.01, 0.5, 0.9, 0.999])
def test_a_nucleus_of_a_large_vocabulary_is_that_of_the_whole_sort(scale: float, top_p: float) -> None:
    logits = random_logits(3, vocab=4_000, scale=scale)
    logits[::7] = -float("inf")
    ours = distribution(sampler(vocab=4_000, temperature=1.0, top_p=top_p), logits)
    sorted_whole = TopPLogitsWarper(top_p)(torch.empty((1, 0), dtype=torch.int64), logits[None].double())
    np.testing.assert_allclose(ours, torch.softmax(sorted_whole[0], -1).numpy(), rtol=1e-9)


def test_half_precision_logits_are_taken() -> None:
    logits = random_logits(8).to(torch.bfloat16)
    [token] = sample_rows(
        LogitRows.of(logits[None]), [sampler(temperature=1.0, top_p=0.9, seed=0, logprobs=True)], [[]]
    )
    expected = np.log(softmax(logits.double().numpy()))[token.token_id]
    assert token.logprob == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(
    "wanted",
    [
        {"top_k": 1, "top_p": 1e-17},
        {"top_p": 5e-324},
        {"temperature": 5e-324, "top_p": 5e-324, "min_p": 1.0},
        {"temperature": 100.0, "repetition_penalty": 0.01, "logit_bias": {1: 100.0}},
        {"temperature": 5e-324, "repetition_penalty": 100.0, "presence_penalty": -2.0},
    ],
)
@pytest.mark.parametrize("logits", [random_logits(3), torch.zeros(VOCAB), torch.full((VOCAB,), 1e36)])
def test_settings_at_their_limits_choose_a_token(wanted: dict[str, Any], logits: torch.Tensor) -> None:
    params = SamplingParams(**{"temperature": 1.0, "seed": 1, **wanted})
    params.validate(VOCAB)
    chooser = TokenSampler(params, np.arange(VOCAB, dtype=np.int32), 0, VOCAB)
    output: list[int] = []
    for _ in range(3):
        output.append(sample(chooser, logits, output).token_id)
    assert all(0 <= token < VOCAB for token in output)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("wanted", [{}, {"temperature": 1.0, "seed": 1}], ids=["greedy", "sampled"])
def test_broken_logits_are_refused(bad: float, wanted: dict[str, Any]) -> None:
    logits = random_logits(2)
    logits[5] = bad
    with pytest.raises(EngineFailed, match="NaN or infinity"):
        sample(sampler(**wanted), logits, [])


def test_rows_without_any_finite_logit_are_refused() -> None:
    with pytest.raises(BadLogits):
        sample(sampler(temperature=1.0), torch.full((VOCAB,), -float("inf")), [])


def test_a_broken_row_costs_the_others_no_draw() -> None:
    logits = torch.stack([random_logits(seed) for seed in range(4)])
    fresh = [sampler(temperature=1.0, seed=seed) for seed in range(4)]
    expected = [sample(chooser, row, []) for chooser, row in zip(fresh, logits, strict=True)]
    broken = logits.clone()
    broken[1, 3] = float("nan")
    broken[2, 0] = float("nan")
    samplers = [sampler(temperature=1.0, seed=seed) for seed in range(4)]
    with pytest.raises(BadLogits) as caught:
        sample_rows(LogitRows.of(broken), samplers, [[]] * 4)
    assert caught.value.rows == (1, 2)
    good = [0, 3]
    again = sample_rows(LogitRows.of(broken).take(good), [samplers[row] for row in good], [[], []])
    assert again == [expected[0], expected[3]]


@pytest.mark.parametrize("vocab", [1, 255, 256, 700])
def test_a_number_stands_for_the_token_that_the_running_sum_reaches(vocab: int) -> None:
    random = np.random.default_rng(vocab)
    scores = (random.standard_normal(vocab) * 4).astype(np.float32)
    scores[random.random(vocab) < 0.2] = -np.inf
    scores[0] = 1.0
    probs = np.exp((scores.astype(np.float64) - scores.max()) / 0.7)
    cumulative = np.cumsum(probs / probs.sum())
    for number in (0.0, *random.random(300), np.nextafter(1.0, 0.0)):
        token = draw(scores, 0.7, float(number))
        assert np.isfinite(scores[token])
        low = cumulative[token - 1] if token else 0.0
        assert low - 1e-6 <= number <= cumulative[token] + 1e-6
