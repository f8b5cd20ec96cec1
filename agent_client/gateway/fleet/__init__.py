"""The runtimes behind the gateway: which are up, and which of them a call goes to."""

from .calls import Calls, Running, Send, prompts_with
from .fleet import Fleet
from .member import Member
from .places import prompt_head

__all__ = ["Calls", "Fleet", "Member", "Running", "Send", "prompt_head", "prompts_with"]
