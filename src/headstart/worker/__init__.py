"""The scheduler's process: its loop, the interface between processes, embeddings."""
