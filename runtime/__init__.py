"""Runs a Hugging Face decoder against the prefix store and serves it over gRPC: `radix-runtime serve`.

Its face is that command and the API in `proto/radixloop/v1`; nothing here is meant to be imported from outside.
"""
