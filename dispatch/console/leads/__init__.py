"""Show the pages of leads: campaigns and why leads wait, the history of a phone number, file uploads."""
