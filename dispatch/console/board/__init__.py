"""The board: what needs attention, job columns, job panel, technician strip and map."""
