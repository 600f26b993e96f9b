"""`headstart distill`: a draft model that learned from the texts of this server's users.

The way of a text: the model answers; `recorder` writes prompt and answer to a file (`texts`), if it
was told to. Later `measure` compares what a speculator would have drafted with what was written
(`acceptance`) and prices it as this machine's steps (`prices`). Only where that leaves something to
gain, `train` tunes a draft model on the earlier conversations, and `proof` compares it with the
best there is without it on the later ones. A draft model that wins is a GGUF for `serve -md`;
control drops it by itself where it stops paying.
"""
