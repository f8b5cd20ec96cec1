"""The runtimes behind the gateway: which are up, and which of them a call goes to."""

from .calls import Attempt, Calls, Running, prompts_with
from .fleet import Fleet
from .member import SERVING, Member
from .places import prompt_head

__all__ = ["SERVING", "Attempt", "Calls", "Fleet", "Member", "Running", "prompt_head", "prompts_with"]
