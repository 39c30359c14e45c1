"""GGUF, the format of llama.cpp: an exporter of `posttrain push`."""
