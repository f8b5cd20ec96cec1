"""Figures of a running engine, and where its time goes."""
