"""What a plain server never imports."""
