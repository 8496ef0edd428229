"""The dispatcher's browser pages. Stands on everything below; decides nothing."""
