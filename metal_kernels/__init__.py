"""Metal kernels as text that MLX compiles on the user's machine; no compiler and no Xcode is needed.

``specs`` lists them, ``launcher`` hands them to MLX, ``products`` and ``attention`` choose grids and tiles.
``README.md`` says what has been checked, and where.
"""
