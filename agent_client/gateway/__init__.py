"""An HTTP front for runtimes: the APIs of OpenAI and Anthropic over gRPC. Needs the extra `gateway`."""

from .app import create_app
from .serving import NotSafe, check_listening, serve
from .tenants import Tenants, read_tenants

__all__ = ["NotSafe", "Tenants", "check_listening", "create_app", "read_tenants", "serve"]
