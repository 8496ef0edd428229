"""How dispatching went: the figures by day and by service, as charts with their tables, and as CSV."""
