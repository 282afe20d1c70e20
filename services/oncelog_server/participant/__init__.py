"""What everybody does who takes part in transactions: partition leaders and offset managers.

The rules here protect the protocol (docs/protocol.md: "Fencing", "Markers", "Questions"), so they
stand once. What a participant stores under a TxId, and what its marker does to
that, is the role's own.

    PURE       commands, fences, marker_order, questions
    outside    handler (markers come in; wire, senders), asking (questions go out; wire)
"""
