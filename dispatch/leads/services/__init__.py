"""The only place where leads change.

`intake`: rows are written and scheduled. `claiming`: ready leads become calls, or wait, or end. `ending`: a call
is over. `by_hand`: what persons and clients do. `releasing`: a pause or a mode is lifted. `repairing`: what the
reconcilers do.

Every function locks the Lead first, then the Call, checks what it was told against the rows, and changes nothing
when it comes late, twice or out of order."""
