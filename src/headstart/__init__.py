"""Headstart: a server for GGUF language models with speculative decoding. Same text, sooner.

Importing the package loads nothing; each part is imported where it is used.
"""

__version__ = "0.1.0"

__all__ = ["__version__"]
