"""Reads what an LLM server printed while it started and accounts for its GPU memory.

Nothing is imported here: `capacity --help` must stay fast, and plugins import the modules they
need.
"""
