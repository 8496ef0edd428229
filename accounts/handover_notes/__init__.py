"""Keep hand-over notes between shifts: `models`, `services`, the only code that changes them, and `retention`.

A dispatcher who goes off duty can leave a note. It is at the top of the board of everyone who is on duty, until
they mark it as read.
"""
