"""The commands of `posttrain`, one file or folder each. `add_arguments` adds arguments; `run` does the work."""
