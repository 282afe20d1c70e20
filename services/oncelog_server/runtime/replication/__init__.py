"""How dialogs of leaders and followers travel: one stream per follower process and leader process,
with all partitions between the two. What is said is decided in `runtime/replica`."""
