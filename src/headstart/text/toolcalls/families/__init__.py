"""Formats that rendering a template cannot detect, one per file; quirks.py maps models to them."""
