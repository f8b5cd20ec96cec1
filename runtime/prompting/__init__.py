"""From text and chat messages to prompt tokens."""
