"""The commands of `posttrain`, one file or folder each, with its arguments (`add_arguments`) and its work (`run`)."""
