"""Checks and measures the runtime on one device: what `deploy/gpu_check.py` runs."""
