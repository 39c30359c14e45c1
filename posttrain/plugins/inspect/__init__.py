"""Inspect AI: `posttrain show inspect` writes its logs, and `external.rollouts` reads them."""
