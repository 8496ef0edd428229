"""Dispatch: gets time-critical work to the right person or system, on time, and loses none of it."""
