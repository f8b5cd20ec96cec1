"""What requests want kept in the cache, and the leases that keep it."""

from .breakpoints import Breakpoint
from .hint_actions import KvHints, Result
from .hint_desk import HintDesk
from .lease_book import LeaseBook
from .wishes import Wishes

__all__ = ["Breakpoint", "HintDesk", "KvHints", "LeaseBook", "Result", "Wishes"]
