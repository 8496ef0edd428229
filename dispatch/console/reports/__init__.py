"""Reports: dispatching statistics by day and by service, as charts, tables and CSV."""
