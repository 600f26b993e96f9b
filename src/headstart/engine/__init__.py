"""libllama behind the `Engine` and `Vocab` protocols: the only folder that calls it."""
