"""Send alerts by voice call and by text message."""
