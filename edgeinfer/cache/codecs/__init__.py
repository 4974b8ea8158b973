"""Ways to store a key or a value in few bits: numpy alone, and what the kernels are checked against."""
