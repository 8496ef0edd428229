"""The REST API of submissions, jobs, service types and policies. `intake`: the short path of submissions."""
