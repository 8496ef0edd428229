"""The REST API of submissions, jobs, service types and dispatch policies. `intake`: the short path of submissions."""
