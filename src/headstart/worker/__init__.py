"""The scheduler's process: its loop, the border between processes, embeddings."""
