"""Tests of the general KV layouts."""
