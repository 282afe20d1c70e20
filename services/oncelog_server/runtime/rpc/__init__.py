"""gRPC: the only room that serves sockets. `server` (every RPC through one path, unary and packed
streams), `peers` (calls to other processes), `cluster_service` (who leads what), `tls`."""
