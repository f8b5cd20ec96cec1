"""Which back end a model gets: the first in order that can serve it here, or the one that was asked for."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from runtime.attention.deterministic import DeterministicAttention
from runtime.attention.flash_attention import FA2_PAGE, FlashAttention2, FlashAttention3, fa2_obstacle, fa3_obstacle
from runtime.attention.interface import AttentionBackend
from runtime.attention.native import NativeAttention, native_obstacle
from runtime.attention.needs import Needs
from runtime.attention.proof import disproof
from runtime.attention.reference import ReferenceAttention
from runtime.attention.sdpa import SdpaAttention
from runtime.attention.shared_prefix import SharedPrefixAttention
from runtime.attention.triton_backend import TritonAttention, triton_obstacle
from runtime.attention.varlen import VarlenAttention, varlen_obstacle, varlen_reads_pages
from runtime.errors import InvalidRequest

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Candidate:
    """A back end before it is made.

    obstacle: why it cannot serve, None when it can. in_place: whether it reads pages of a size where they lie. cascade:
    whether a step's calls go by what its rows share; by itself a step that reads in place has shapes that depend on
    nothing but its row counts.
    """

    make: Callable[[], AttentionBackend]
    obstacle: Callable[[Needs], str | None]
    in_place: Callable[[int], bool]
    cascade: bool = False


def _nothing(_: Needs) -> None:
    """Nothing stands in the way of a back end that every torch runs."""


def _deterministic_obstacle(needs: Needs) -> str | None:
    """Why the deterministic back end does not serve; None when it does."""
    if needs.device.type != "cpu":
        return "runs on the CPU only"
    if needs.softcap:
        return "has no softcap"
    return next((f"takes keys as wide as values, not {k} and {v}" for k, v in needs.dims if k != v), None)


def _never(_: int) -> bool:
    return False


def _always(_: int) -> bool:
    return True


def _pages(block_size: int) -> bool:
    return block_size % FA2_PAGE == 0


# In the order in which they are preferred, where they read pages in place.
CANDIDATES: dict[str, Candidate] = {
    "fa3": Candidate(FlashAttention3, fa3_obstacle, _always),
    "fa2": Candidate(FlashAttention2, fa2_obstacle, _pages),
    "varlen": Candidate(VarlenAttention, varlen_obstacle, lambda size: _pages(size) and varlen_reads_pages()),
    "triton": Candidate(TritonAttention, triton_obstacle, _always),
    "native": Candidate(NativeAttention, native_obstacle, _always),
    "sdpa": Candidate(SdpaAttention, _nothing, _never),
    "fa3+shared": Candidate(lambda: SharedPrefixAttention(FlashAttention3()), fa3_obstacle, _always, cascade=True),
    "triton+shared": Candidate(
        lambda: SharedPrefixAttention(TritonAttention()), triton_obstacle, _always, cascade=True
    ),
    "reference": Candidate(ReferenceAttention, _nothing, _never),
    "deterministic": Candidate(DeterministicAttention, _deterministic_obstacle, _never),
}
# Taken when named, never by themselves.
_BY_NAME_ONLY = ("fa3+shared", "triton+shared", "reference", "deterministic")


def check_name(name: str) -> None:
    """Raises InvalidRequest for a name that no back end has."""
    if name != "auto" and name not in CANDIDATES:
        raise InvalidRequest("attention", name, f"must be one of auto, {', '.join(CANDIDATES)}")


def make_backend(name: str) -> AttentionBackend:
    """The back end of that name. Raises InvalidRequest for an unknown one, ImportError when its library is missing."""
    check_name(name)
    return CANDIDATES["sdpa" if name == "auto" else name].make()


def reads_in_place(name: str, block_size: int) -> bool:
    """Whether the back end of that name reads pages of this size where they lie."""
    return CANDIDATES[name].in_place(block_size)


def fixed_shapes(name: str, block_size: int) -> bool:
    """Whether a decode step's shapes follow from its number of rows alone, so that a CUDA graph can be recorded."""
    return reads_in_place(name, block_size) and not CANDIDATES[name].cascade


def in_order(block_size: int) -> list[str]:
    """The names by preference: whoever must gather the KV of every step comes behind whoever reads it in place."""
    by_itself = [name for name in CANDIDATES if name not in _BY_NAME_ONLY]
    return sorted(by_itself, key=lambda name: not reads_in_place(name, block_size))


def survey(needs: Needs) -> dict[str, str | None]:
    """For every back end, by preference, what stands in its way; on a GPU each that could serve is tried."""
    return {name: _obstacle(name, needs) for name in (*in_order(needs.block_size), *_BY_NAME_ONLY)}


def choose(name: str, needs: Needs) -> str:
    """The name of the back end to use, `auto` being the first in order that serves; says what was passed over.

    On a GPU a back end first answers a small step, and is passed over when its answer is not the reference's; so does
    the native one. Raises InvalidRequest when the named one is unknown or cannot serve, with the reason.
    """
    check_name(name)
    if name != "auto":
        obstacle = _obstacle(name, needs)
        if obstacle is not None:
            raise InvalidRequest("attention", name, f"cannot serve this model here: {obstacle}")
        return name
    passed_over: list[str] = []
    for candidate in in_order(needs.block_size):
        obstacle = _obstacle(candidate, needs)
        if obstacle is None:
            others = "; ".join(passed_over)
            log.info("attention through %s%s", candidate, f"; passed over: {others}" if others else "")
            return candidate
        # On a CPU that nothing made for GPUs serves is no news, and the other way round.
        if (candidate == NativeAttention.name) == (needs.device.type == "cpu"):
            passed_over.append(f"{candidate} ({obstacle})")
    raise InvalidRequest("attention", name, f"no back end serves this model here: {'; '.join(passed_over)}")


def _obstacle(name: str, needs: Needs) -> str | None:
    candidate = CANDIDATES[name]
    obstacle = candidate.obstacle(needs)
    if obstacle is None and needs.device.type == "cuda":
        return disproof(candidate.make, needs)
    return obstacle
