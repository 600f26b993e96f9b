"""Several servers behind one address: which of them takes a request, and why."""
