"""One replica's log on disk: frames, segments, recovery, group commit, snapshots, slots.

The bytes are drawn in docs/log_format.md. `journal` is the door; `disk` is the only code of this
room that touches the operating system.
"""
