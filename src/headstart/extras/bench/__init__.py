"""`headstart bench`: how fast a server answers, with drafts and without, on this machine."""
