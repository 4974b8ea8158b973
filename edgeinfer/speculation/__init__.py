"""Several tokens a step without a second model: drafters guess, the model verifies, a controller says when it pays.

A draft is tokens with a chance each (``drafter``). ``suffix`` finds them in what was said before, ``controller`` weighs
their chances against what verifying so many rows costs here (``costs``), and ``pilot`` does both for one request.
Sampling stays with ``generation``: a drafted token is kept only where it is the one that was sampled anyway.
"""
