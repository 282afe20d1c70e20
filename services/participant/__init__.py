"""PURE. What everybody keeps who takes part in transactions: partition leaders and offset managers.

The rules here protect the protocol (design §6, "Fencing" and "Markers"), so they stand once. What a
participant stores under a TxId, and what its marker does to that, is the role's own.
"""
