"""The commands of `posttrain`, one file or folder each: its arguments (`add_arguments`) and what it does (`run`)."""
