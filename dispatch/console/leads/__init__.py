"""The pages of leads: how campaigns go and why leads wait, a phone's history, files of leads."""
