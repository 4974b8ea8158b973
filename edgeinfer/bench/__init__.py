"""Engines measured in turn, in one run, as ratios with their spread.

``plan`` says what is measured, ``session`` takes turns, ``report`` holds the result. Each engine lives in a process of
its own (``remote`` here, ``worker`` there), so that one that crashes, spins or runs out of memory disturbs no other.
"""
