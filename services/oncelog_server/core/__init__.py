"""PURE. What every role is made of: ids, frames, the machine, and the ports to the outside.

Nothing in this room imports grpc, asyncio, time, random or os (an import contract holds it).
"""
