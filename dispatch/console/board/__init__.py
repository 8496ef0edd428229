"""The board: what needs attention, the jobs in columns, one job in the drawer, the crew, the map."""
