"""`oncelog doctor`: looks at everything that a cluster stands on, from where it is run.

`command` asks, `findings` says; each of the others looks at one thing: `reaching` (addresses),
`processes` (versions, clocks, leadership, transactions), `etcd`, `certificates`, `machine` (disks,
open files, what `oncelog up` needs).
"""
