"""What must be so before anything imports grpc."""

import os

# The Spark tests start a JVM, by a fork, from this process, whose other tests use gRPC. With gRPC's
# fork handlers some of those forks crash.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
