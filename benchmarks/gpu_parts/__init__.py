"""The parts of `make gpu`: each has a function `run(figures, device, sizes)` and measures until its time is over."""
