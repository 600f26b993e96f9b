"""Features that a plain server never imports."""
