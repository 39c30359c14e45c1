"""Tests of external engines: a client of ours, a server process of ours, and real vLLM where it is installed."""
