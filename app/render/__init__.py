"""Text to lines of styled runs that fit a width. Knows nothing of Textual; styles are names."""
