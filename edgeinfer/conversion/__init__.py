"""Models from one form into another: to GGUF, to another quantization; and whether a file is whole."""
