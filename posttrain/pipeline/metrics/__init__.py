"""The catalogue of metrics: what each number of each stage means, and when it is healthy."""
