"""OpenAI's responses: the request as a chat, its answer as items and events, and what is kept to go on from."""

from .endpoints import ResponsesEndpoints

__all__ = ["ResponsesEndpoints"]
