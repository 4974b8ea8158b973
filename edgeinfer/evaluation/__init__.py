"""Quality, measured: perplexity, KL divergence, retrieval, and the price of a KV format on the user's own text."""
