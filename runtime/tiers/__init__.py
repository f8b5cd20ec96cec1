"""Tiers behind the KV pool: host memory and disk, the copies between them, and what survives a restart."""
