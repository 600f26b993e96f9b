"""How many tokens to draft, for which slots, by which speculator. Arithmetic, and the file
of what was learned (`state`); start reading at `controller`.
"""
