"""What must be so before anything imports grpc, or starts a process, and how Hypothesis looks for
examples."""

import os
import signal

from hypothesis import HealthCheck, Phase, settings

from tests.planted.runs import PLANT_VARIABLE

# The Spark tests start a JVM, by a fork, from this process, whose other tests use gRPC. With gRPC's
# fork handlers some of those forks crash.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")

# A shell has its background ignore Ctrl-C, and so would every process that tests start and stop.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# No test depends on how busy the machine is.
settings.register_profile("oncelog", deadline=None, suppress_health_check=[HealthCheck.too_slow])
# A planted bug is to be found, not in its smallest form: on a busy machine that takes minutes.
settings.register_profile(
    "planted",
    settings.get_profile("oncelog"),
    phases=[phase for phase in Phase if phase not in (Phase.shrink, Phase.explain)],
)
settings.load_profile("planted" if os.environ.get(PLANT_VARIABLE) else "oncelog")
