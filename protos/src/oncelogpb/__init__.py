"""The wire contract: stubs, errors, batches, streams of calls."""

import os

__version__ = "0.1.0"

# gRPC's fork handlers, which are on by default, crash forked children now and then, and none of our
# connections survives a fork with or without them (`oncelog.errors.Forked`). The variable is read
# when grpc is imported, and nothing of ours imports it before this. Who has set it keeps it.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
