"""The stages of a pipeline of seconds, with the library's own stage runner, tables, checkpoints and models."""
