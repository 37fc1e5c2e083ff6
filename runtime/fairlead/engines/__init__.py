"""Container engines: finding them, and running a command in an image with them."""
