"""Our own plugins: each folder is found by entry points (pyproject.toml), and nothing imports it by name."""
