"""An HTTP front for a runtime: the APIs of OpenAI and Anthropic over gRPC. Needs the extra `gateway`."""

from .app import create_app
from .serving import serve
from .tenants import Tenants, read_tenants

__all__ = ["Tenants", "create_app", "read_tenants", "serve"]
