"""Several models behind one address: child servers, and the requests that are passed to them."""
