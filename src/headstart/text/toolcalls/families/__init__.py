"""Formats that cannot be found by rendering a template, one file each; quirks.py says whose."""
