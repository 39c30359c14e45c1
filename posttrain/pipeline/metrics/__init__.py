"""The catalogue of metrics: the meaning and healthy range of each number of each stage."""
