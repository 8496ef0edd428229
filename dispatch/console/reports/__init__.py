"""Reports of a period, compared with the one before, as charts, tables, CSV and email.

`kinds` lists them; each module named after what a report is about builds it from `pages` and `tables`.
"""
