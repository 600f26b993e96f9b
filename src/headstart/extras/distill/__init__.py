"""`headstart distill`: trains a draft model on the texts of this server's users.

The life of a text: the model answers; `recorder` writes prompt and answer to a file (`texts`) if
enabled. Later `measure` compares a speculator's drafts with the answers (`acceptance`) and prices
them in this machine's steps (`prices`). Only if there is something to gain, `train` tunes a draft
model on the earlier conversations, and `proof` compares it with the best alternative on the later
ones. A draft model that wins is a GGUF for `serve -md`; control disables it when it stops paying.
"""
