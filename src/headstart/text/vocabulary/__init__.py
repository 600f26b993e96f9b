"""Translation between the vocabularies of a target and a draft model, on bytes."""
