"""The toy tasks of the miniature. They are plugins: pyproject.toml registers them as `posttrain.tasks`."""
