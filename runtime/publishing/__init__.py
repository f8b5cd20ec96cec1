"""What others are told of the cache: metadata in Redis, KV events."""
