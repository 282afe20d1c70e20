"""The thinking of the client, without its acting: no grpc, asyncio, time, random or os in here.

Everything is driven from `oncelog.aio`, which owns the loop, and from tests, which own nothing.
"""
