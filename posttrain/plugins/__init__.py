"""posttrain's own plugins. Entry points (pyproject.toml) find each folder, and no code imports it by name."""
