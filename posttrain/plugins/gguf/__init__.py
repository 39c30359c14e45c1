"""GGUF, the format of llama.cpp: an exporter for `posttrain push`."""
