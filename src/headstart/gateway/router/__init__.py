"""Several models behind one address: child servers, and the requests passed to them."""
