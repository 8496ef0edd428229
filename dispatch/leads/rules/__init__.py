"""Decisions as pure functions: no database, no clock, no network.

`facts`: what is known of a lead, a campaign and a batch, and the verdicts. `gates`: whether a lead is called now.
`retries`: what becomes of it when its call has ended."""
