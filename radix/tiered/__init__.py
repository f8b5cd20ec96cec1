"""Simulation of a device with slower tiers behind it: what each finds, and what that does to the time of a call."""
