"""libllama behind the `Engine` and `Vocab` protocols: the only folder that imports llama_cpp."""
