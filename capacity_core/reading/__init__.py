"""Bytes in, runs out: inputs are opened, scanned for known messages, and cut into server starts."""
